#!/bin/sh
# libraries.sh PROGRAM: the libraries that a program loads, less those that every base image has.
set -eu
found="$(ldd "$1")"
if missing="$(printf '%s\n' "$found" | grep 'not found')"; then
    printf 'not found for %s:\n%s\n' "$1" "$missing" >&2
    exit 1
fi
printf '%s\n' "$found" | awk '$2 == "=>" { print $3 }' |
    grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+))\.so[^/]*$'
