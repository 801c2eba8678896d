"""Lets Python import a CUDA build of torch on a machine without CUDA's libraries, for work on the CPU.

Usage: python cuda_stub.py SITE_PACKAGES OUT_FOLDER    then run Python with LD_LIBRARY_PATH=OUT_FOLDER

The official wheel links cuBLAS, cuDNN and a dozen more libraries: over 2 GB of downloads of which a comparison on the CPU
calls nothing. One small library under all their names defines every function they are linked for; calling one ends the process.
"""

import re
import subprocess
import sys
from pathlib import Path

LIBRARIES = ["libtorch_python.so", "libtorch_cuda.so", "libtorch_cuda_linalg.so", "libtorch_nvshmem.so"]


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def main():
    torch, out = Path(sys.argv[1]) / "torch" / "lib", Path(sys.argv[2])
    libraries = [str(torch / name) for name in LIBRARIES if (torch / name).exists()]
    missing = {line.split()[0] for library in libraries for line in lines("ldd", library) if "not found" in line}
    undefined = {line.split()[-1].split("@")[0] for library in libraries for line in lines("nm", "-D", "--undefined-only", library)}
    functions = sorted(name for name in undefined if re.match(r"(cu|nccl|nvshmem|nvrtc|nvJit|nvPTX|nvtx)[A-Za-z0-9_]+$", name))
    # What another library on the machine has stays its own.
    functions = [name for name in functions if not name.startswith(("cuda", "cupti"))]
    out.mkdir(parents=True, exist_ok=True)
    source = out / "stub.c"
    source.write_text("#include <stdlib.h>\n" + "".join(f"void {name}(void) {{ abort(); }}\n" for name in functions))
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(out / "stub.so"), str(source)], check=True)
    for name in missing:
        (out / name).unlink(missing_ok=True)
        (out / name).symlink_to("stub.so")


if __name__ == "__main__":
    main()
