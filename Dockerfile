# The demo of the README in a container, as an ordinary user and without a network at run time:
#   docker build -t commcc . && docker run --rm commcc
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" commcc commcc run GRAPH --preset auto -o tuned.fx.txt.gz
FROM python:3.12-slim

WORKDIR /src
COPY . .
# --build-arg PIP_EXTRA_INDEX_URL=... chooses an index with builds of PyTorch for the CPU: commcc needs no GPU.
ARG PIP_EXTRA_INDEX_URL
# Results go to /work, which any user can write; nobody needs a home folder.
RUN pip install --no-cache-dir -c constraints.txt . \
    && useradd --no-create-home --uid 1000 user \
    && install -d -m 1777 /work
USER 1000
WORKDIR /work
ENV OMP_NUM_THREADS=1
CMD ["commcc", "run", "/src/sample_graphs/llama3_8b_fsdp64_bw.fx.txt.gz", "--preset", "auto", "-o", "bw.fx.txt.gz"]
