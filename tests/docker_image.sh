#!/usr/bin/env bash
# Makes a small image from programs of this machine and the libraries that they load, for tests only:
#
#   tests/docker_image.sh IMAGE PROGRAM[=PATH-IN-THE-IMAGE]...
#
# Nothing is fetched. Programs lie where they lie here unless said otherwise; /bin/sh and a few tools for tests are always there.
set -euo pipefail
image="$1"; shift
root="$(mktemp -d)"
chmod 755 "$root"
trap 'rm -rf "$root"' EXIT

# add SOURCE TARGET: the file, or what a link leads to.
add() {
    mkdir -p "$root$(dirname "$2")"
    [ -e "$root$2" ] || cp -L --reflink=auto "$1" "$root$2"
}

add_program() {
    add "$1" "$2"
    # A script has no libraries.
    { ldd "$1" 2>/dev/null | grep -o '/[^ ]*' || true; } | while read -r library; do add "$library" "$library"; done
}

for tool in sh sleep cat id ls stty; do
    path="$(command -v "$tool")"
    add_program "$path" "/bin/$tool"
done
# What connections are checked with.
add /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
for program in "$@"; do
    add_program "${program%%=*}" "${program#*=}"
done
mkdir -p "$root/tmp" && chmod 1777 "$root/tmp"
# A new one leaves no nameless one behind.
docker image rm "$image" >/dev/null 2>&1 || true
tar -c -C "$root" . | docker import --change 'ENV PATH=/usr/local/bin:/bin' - "$image" >/dev/null
