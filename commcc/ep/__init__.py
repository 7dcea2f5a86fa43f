"""Expert parallelism: what annotations say of token exchanges, chunked regions, and how they are planned."""
