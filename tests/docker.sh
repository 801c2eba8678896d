# Sourced by tests/run: a real container engine, for tests only.
#
#   start_docker     leaves DOCKER_HOST in the environment, or says in one line why the tests that need an engine are skipped, and fails
#   stop_docker      at the end, whatever happened
#
# An engine that answers already is used as it is. Otherwise, as root on a Debian, its packages are installed and an engine of the tests'
# own is started: storage in the cache (or in FT_DOCKER_HOME), socket and state in a throw-away folder; nothing of it is left running.

docker_home="${FT_DOCKER_HOME:-$cache/test-tools/docker}"
docker_run=""

start_docker() {
    step "A container engine"
    docker_answers && return
    install_docker || return
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

stop_docker() {
    [ -n "$docker_run" ] || return 0
    local pid
    if pid="$(cat "$docker_run/pid" 2>/dev/null)"; then
        kill "$pid" 2>/dev/null || true
        tail --pid="$pid" -f /dev/null
    fi
    rm -rf "$docker_run"
    docker_run=""
}

docker_answers() {
    command -v docker >/dev/null && docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

install_docker() {
    command -v dockerd >/dev/null && command -v docker-registry >/dev/null && command -v debootstrap >/dev/null && return
    [ "$(id -u)" = 0 ] || { no_docker "no engine answers, and only root could start one"; return 1; }
    command -v apt-get >/dev/null || { no_docker "no engine answers, and there is no apt-get to install one"; return 1; }
    local packages=(docker.io docker-registry debootstrap)
    apt_install "${packages[@]}" || { apt-get update -qq >&2 && apt_install "${packages[@]}"; } ||
        { no_docker "apt-get cannot install ${packages[*]}"; return 1; }
}

# The services of the packages are not started where there is nobody who would.
apt_install() {
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -qq -y --no-install-recommends "$@" >/dev/null 2>&1
}

no_docker() {
    echo "SKIPPED: the tests with a container engine: $1" >&2
    return 1
}
