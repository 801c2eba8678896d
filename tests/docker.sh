# Sourced by tests/run: a real container engine, for tests only.
#
#   start_docker     leaves DOCKER_HOST and FT_BASE (an image of a minimal system) in the environment, or says in one line why the
#                    tests that need an engine are skipped, and fails; with FT_DOCKER_FULL also FT_BUILDER, which compiles
#   stop_docker      at the end, whatever happened
#
# An engine that answers already is used as it is. Otherwise, as root on a Debian, its packages are installed and an engine of the
# tests' own is started: storage in the cache (or in FT_DOCKER_HOME), socket and state in a throw-away folder; nothing of it is left
# running.

docker_home="${FT_DOCKER_HOME:-$cache/test-tools/docker}"
docker_run=""

start_docker() {
    step "A container engine"
    install_docker || return
    docker_answers || { start_engine && leftovers; } || return
    base_image && builder_image
}

start_engine() {
    docker_run="$(mktemp -d)"
    mkdir -p "$docker_home"
    local log="$docker_home/dockerd.log"
    # Two engines would ruin one storage; the lock goes with the engine.
    exec 9>"$docker_home/lock"
    flock --nonblock 9 || { echo "waiting for the engine of another tests/run" >&2; flock 9; }
    # In a container of its own there may be no bridge and no rules for packets; the tests use the host's network.
    dockerd --data-root "$docker_home/data" --exec-root "$docker_run/exec" --pidfile "$docker_run/pid" \
        --host "unix://$docker_run/docker.sock" >"$log" 2>&1 &
    exec 9>&-
    export DOCKER_HOST="unix://$docker_run/docker.sock"
    local wait
    for wait in $(seq 150); do
        docker_answers && return
        kill -0 $! 2>/dev/null || break
        sleep 0.2
    done
    stop_docker
    unset DOCKER_HOST
    no_docker "dockerd does not come up here: $(grep -v level=info "$log" | tail -n 1)"
}

# Nothing but base images and some cache of builds outlives a run in the tests' own engine: what one that was broken off left goes.
leftovers() {
    docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes >/dev/null
    docker images --format '{{.Repository}}:{{.Tag}}' | grep -vE '^(ftctl-test/(base|builder):|<none>)' |
        xargs --no-run-if-empty docker image rm --force >/dev/null
    docker image prune --force >/dev/null
    docker volume prune --force >/dev/null
    docker builder prune --force --keep-storage 8GB >/dev/null
}

# A minimal system like the one that links the programs: no registry of images may be in reach.
base_image() {
    export FT_BASE=ftctl-test/base
    docker image inspect "$FT_BASE" >/dev/null 2>&1 && return
    local codename root
    codename="$(. /etc/os-release && echo "$VERSION_CODENAME")"
    root="$(mktemp -d)"
    debootstrap --variant=minbase "$codename" "$root" >"$root.log" 2>&1 ||
        { no_docker "debootstrap fails: $(tail -n 1 "$root.log")"; return 1; }
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale,info}
    tar -C "$root" -c . | docker import - "$FT_BASE" >/dev/null
    rm -rf "$root" "$root.log"
}

# With FT_DOCKER_FULL also what compiles in containers: that system with a C++ compiler, and this machine's Rust.
builder_image() {
    [ -n "${FT_DOCKER_FULL:-}" ] || return 0
    export FT_BUILDER=ftctl-test/builder
    docker image inspect "$FT_BUILDER" >/dev/null 2>&1 && return
    local context sysroot
    context="$(mktemp -d)"
    sysroot="$(rustc --print sysroot)"
    mkdir "$context/rust"
    cp -a "$sysroot/bin" "$sysroot/lib" "$context/rust/"
    cp /etc/ssl/certs/ca-certificates.crt "$context/"
    cat >"$context/Dockerfile" <<'DOCKERFILE'
ARG BASE
FROM $BASE
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends g++ python3-pip ca-certificates >/dev/null
COPY ca-certificates.crt /etc/ssl/certs/
COPY rust/ /usr/local/
DOCKERFILE
    DOCKER_BUILDKIT=0 docker build --quiet --network host --build-arg "BASE=$FT_BASE" --tag "$FT_BUILDER" "$context" >/dev/null ||
        { no_docker "the image that compiles cannot be made"; return 1; }
    rm -rf "$context"
}

stop_docker() {
    [ -n "$docker_run" ] || return 0
    local pid
    if pid="$(cat "$docker_run/pid" 2>/dev/null)"; then
        kill "$pid" 2>/dev/null || true
        tail --pid="$pid" -f /dev/null
    fi
    # Left mounted by an engine that had a container in the host's network.
    umount "$docker_run"/exec/netns/* 2>/dev/null || true
    rm -rf "$docker_run"
    docker_run=""
}

docker_answers() {
    command -v docker >/dev/null && docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

install_docker() {
    command -v dockerd >/dev/null && command -v docker-registry >/dev/null && command -v debootstrap >/dev/null &&
        [ -x /usr/sbin/sshd ] && return
    [ "$(id -u)" = 0 ] || { no_docker "no engine answers, and only root could start one"; return 1; }
    command -v apt-get >/dev/null || { no_docker "no engine answers, and there is no apt-get to install one"; return 1; }
    local packages=(docker.io docker-registry debootstrap openssh-server openssh-client)
    apt_install "${packages[@]}" || { apt-get update -qq >&2 && apt_install "${packages[@]}"; } ||
        { no_docker "apt-get cannot install ${packages[*]}"; return 1; }
}

# The services of the packages are not started where there is no init to do so.
apt_install() {
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -qq -y --no-install-recommends "$@" >/dev/null 2>&1
}

no_docker() {
    echo "SKIPPED: the tests with a container engine: $1" >&2
    return 1
}
