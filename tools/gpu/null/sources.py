"""`python -m tools.gpu.null.sources`: every CUDA source as it stands, and the planted faults."""

from tools.gpu.micro.sweep import compile_sources
from tools.gpu.sanitize.planted import SOURCE

if __name__ == "__main__":
    compile_sources((SOURCE,))
