#!/bin/sh
# libtorch.sh VARIANT PIP_INDEX TORCH_INDEX
#
# Installs libtorch below /build/libtorch: site/ as pip leaves it, link/ what the linker may see. Empty indexes are pip's own.
set -eu
variant="$1" version=2.11.0 home=/build/libtorch
[ -z "$2" ] || export PIP_INDEX_URL="$2"

python3 -m pip --version >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-pip; }
install() {
    python3 -m pip install --no-cache-dir --no-compile --disable-pip-version-check --root-user-action=ignore --progress-bar=off \
        --target "$home/site" "$@"
}
install --no-deps ${3:+--index-url "$3"} "torch==$version"
mkdir -p "$home/link/lib"
case "$variant" in
cpu)
    # The build for CUDA links these two even on a CPU; the one for CPUs does not.
    if readelf -d "$home/site/torch/lib/libtorch_cpu.so" | grep -q libcudart; then
        install --no-deps "nvidia-cuda-runtime==13.*" "nvidia-cuda-cupti==13.*"
    fi
    # With libtorch_cuda in sight it would be linked, and is not there at run time.
    for library in c10 torch_cpu torch; do ln -s "$home/site/torch/lib/lib$library.so" "$home/link/lib/"; done
    ;;
*)
    echo "there is no variant $variant: cpu" >&2
    exit 2
    ;;
esac
