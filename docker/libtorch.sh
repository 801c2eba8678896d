#!/bin/sh
# libtorch.sh CUDA PIP_INDEX TORCH_INDEX
#
# Installs libtorch below /build/libtorch: site/ as pip leaves it, link/ what the linker may see; and in /image/lib what the trainer
# loads. CUDA is a version, or none: the build for CPUs, or of the one for CUDA what a CPU needs. Empty indexes are pip's own.
set -eu
cuda="$1" home=/build/libtorch wheels=/build/wheels
[ -z "$2" ] || export PIP_INDEX_URL="$2"

python3 -m pip --version >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-pip; }
# locked NAME ARGUMENTS...: the wheels of wheels/NAME.txt, and no others; from one index alone.
locked() {
    lock="$wheels/$1.txt"
    shift
    PIP_EXTRA_INDEX_URL='' python3 -m pip install --no-cache-dir --no-compile --only-binary=:all: --disable-pip-version-check \
        --root-user-action=ignore --progress-bar=off --target "$home/site" --require-hashes --no-deps --requirement "$lock" "$@"
}
case "$cuda" in
none)
    locked cpu ${3:+--index-url "$3"}
    # The build for CUDA links these two even on a CPU; the one for CPUs does not.
    if readelf -d "$home/site/torch/lib/libtorch_cpu.so" | grep -q libcudart; then locked cpu-links; fi
    ;;
*) locked "cu$(printf %s "$cuda" | tr -d .)" ${3:+--index-url "$3"} ;;
esac
mkdir -p "$home/link/lib"
# With libtorch_cuda in sight it would be linked; the trainer loads it itself where there is a GPU.
for library in c10 torch_cpu torch; do ln -s "$home/site/torch/lib/lib$library.so" "$home/link/lib/"; done

mkdir -p /image/lib
libraries="$(sh /build/libraries.sh "$home/site/torch/lib/libtorch_cpu.so" "$cuda")"
for library in $libraries; do
    name="/image/lib/${library##*/}"
    case "$library" in
    # Gigabytes: one copy will do.
    "$home"/*) mv "$library" "$name" && ln -s "$name" "$library" ;;
    *) cp -L "$library" "$name" ;;
    esac
done
# Times are a part of a layer, and these files are the same whenever they were made.
find /image -exec touch -h -d @0 {} +
