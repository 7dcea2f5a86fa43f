"""What commcc says about its results: JSON documents, and tables for people.

``documents`` makes plain dictionaries and imports nothing heavy; the other modules turn such
dictionaries and the library's result values into rich renderables. Nothing here computes results.
"""
