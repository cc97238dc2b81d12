"""The reference engine: a small dense decoder with every projection in NVFP4 behind the plan cache, served over HTTP.

It is the thing under test, not a product: small, plain, one request path, one BLAS thread.
"""

import os

# OpenBLAS reads these once, when numpy is first imported. One thread: with two, the second spins on the core that the
# load client measures from, and a tactic's time depends on what else runs.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
    os.environ[_name] = "1"
