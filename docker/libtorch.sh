#!/bin/sh
# libtorch.sh CUDA PIP_INDEX TORCH_INDEX
#
# Installs libtorch below /build/libtorch: site/ as pip leaves it, link/ what the linker may see; and in /image/lib what the trainer
# loads. CUDA is a version, or none: the build for CPUs, or of the one for CUDA what a CPU needs. Empty indexes are pip's own.
set -eu
cuda="$1" version=2.11.0 home=/build/libtorch wheels=/build/wheels
[ -z "$2" ] || export PIP_INDEX_URL="$2"

python3 -m pip --version >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-pip; }
# install ARGUMENTS...: from one index alone: a package of the same name on a second one must not take its place.
install() {
    PIP_EXTRA_INDEX_URL='' python3 -m pip install --no-cache-dir --no-compile --only-binary=:all: --disable-pip-version-check \
        --root-user-action=ignore --progress-bar=off --target "$home/site" "$@"
}
# locked NAME ARGUMENTS...: the wheels of wheels/NAME.txt, and no others.
locked() {
    lock="$wheels/$1.txt"
    shift
    install --require-hashes --no-deps --requirement "$lock" "$@"
}
built_for() {
    grep -q "^cuda.*'$cuda'" "$home/site/torch/version.py" ||
        { echo "the index has torch $version for another CUDA than $cuda: $(grep '^cuda' "$home/site/torch/version.py")" >&2; exit 1; }
}
case "$cuda" in
none)
    locked cpu ${3:+--index-url "$3"}
    # The build for CUDA links these two even on a CPU; the one for CPUs does not.
    if readelf -d "$home/site/torch/lib/libtorch_cpu.so" | grep -q libcudart; then locked cpu-links; fi
    ;;
13.0)
    locked cu130 ${3:+--index-url "$3"}
    built_for
    ;;
*)
    # No list of hashes is kept of this build: its index alone has it.
    install --no-deps ${3:+--index-url "$3"} "torch==$version"
    built_for
    # What it names of NVIDIA's, and nothing for Python.
    sed -nE 's/^Requires-Dist: ((nvidia-|cuda-toolkit)[^; ]*).*/\1/p' "$home/site/torch-$version"*.dist-info/METADATA >"$home/cuda"
    install ${3:+--index-url "$3"} --requirement "$home/cuda"
    ;;
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
