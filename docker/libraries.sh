#!/bin/sh
# libraries.sh FILE CUDA: the libraries that the trainer, or libtorch itself, loads, less those that every base image has. CUDA is a
# version, or none.
set -eu
file="$1" cuda="$2"

# linked FILE...: what they are linked with.
linked() {
    found="$(ldd "$@")"
    if missing="$(printf '%s\n' "$found" | grep 'not found')"; then
        printf 'not found for %s:\n%s\n' "$*" "$missing" >&2
        exit 1
    fi
    printf '%s\n' "$found" | awk '$2 == "=>" { print $3 }'
}

libraries="$(echo "$file" && linked "$file")"
if [ "$cuda" != none ]; then
    torch="$(printf '%s\n' "$libraries" | sed -n 's|/libtorch_cpu\.so$||p')"
    grep -qs "^cuda.*'$cuda'" "$torch/../version.py" ||
        { echo "$file is linked with no libtorch for CUDA $cuda, but with ${torch:-none}" >&2; exit 1; }
    # The trainer loads the first itself, and that one the others when something is computed that they are for.
    # libtorch_cuda_linalg, and cuSOLVER with it, stays out: the trainer solves no equations.
    later="$torch/libtorch_cuda.so $(find "$torch" "$torch/../../nvidia" -name 'libcudnn_*.so.*' -o -name 'libnvrtc.so.*' -o -name 'libnvrtc-builtins.so.*')"
    libraries="$(printf '%s\n' "$libraries" $later && linked $later)"
fi
printf '%s\n' "$libraries" | grep '/[^/]*\.so[^/]*$' | grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+))\.so[^/]*$' |
    awk -F/ '!seen[$NF]++'
