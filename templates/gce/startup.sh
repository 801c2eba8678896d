#!/bin/bash
# Runs as root when a machine of ftctl starts: fetches the order and the image, starts the agent in a container, and switches the
# machine off when the agent has ended or cannot start. Its output is on the serial port. Its input is the machine's metadata:
#   ftctl-image         the container image
#   ftctl-cards         how many GPUs there are
#   ftctl-order         the agent's order; comes when ftctl submits the job
#   ftctl-environment   the agent's variables, one JSON object: a signature for the store that ends with the job; comes with the
#                       order, and is removed after the agent's first heartbeat, unless a group replaces this machine
#   ftctl-group         URL of the group that replaces this machine when it has stopped, where there is one
set -u
metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
home="${FTCTL_HOME:-/var/lib/ftctl}"
secrets="${FTCTL_RUN:-/run/ftctl}" # In memory: no disk keeps them.
user=10001                         # Of the agent and the trainer, in their container and here.

get() { # get PATH: empty when there is none
    curl -sf --max-time 10 --retry 3 --retry-connrefused -H 'Metadata-Flavor: Google' "$metadata/$1"
}

tell() { # tell KEY VALUE: a guest attribute, which ftctl reads
    curl -sf --max-time 10 -X PUT -H 'Metadata-Flavor: Google' --data "$2" "$metadata/guest-attributes/ftctl/$1" >/dev/null
}

beat() { # a sign of life every ten seconds, with the cloud's own time, so that no other clock matters
    local head
    while head="$(curl -s --max-time 10 -o /dev/null -D - -H 'Metadata-Flavor: Google' "$metadata/name" | tr -d '\r')"; do
        tell beat "$(sed -n 's/^[Dd]ate: //p' <<<"$head")"
        sleep 10
    done
}

token() { # of the machine's service account; empty where it has none
    get service-accounts/default/token | sed -n 's/.*"access_token" *: *"\([^"]*\)".*/\1/p'
}

ask_group() { # ask_group METHOD BODY: with the rights of the machine's service account
    local try
    [ -n "$group" ] || return 0
    for try in 1 2 3; do
        # Every process of the machine could read an argument.
        curl -sf --max-time 30 -o /dev/null -X "$1" -H @<(echo "Authorization: Bearer $(token)") -H 'Content-Type: application/json' \
            --data "$2" "$group" && return
        sleep "$try"
    done
    echo "ftctl: $1 on the group $group failed; it keeps replacing this machine until its time limit"
}

yield_to_next() { # a preempted machine must not stop its group from making the next one
    [ -n "$group" ] && [ "$(get preempted)" = TRUE ] || return 0
    poweroff
    exit
}

switch_off() { # the machine keeps its disk and its console
    yield_to_next
    ask_group PATCH '{"instanceLifecyclePolicy":{"defaultActionOnFailure":"DO_NOTHING"}}'
    poweroff
}

give_up() { # a machine that cannot do its work must not cost money
    yield_to_next
    echo "ftctl: FAILED: $*"
    tell failure "$*"
    sleep 1
    switch_off
    exit 1
}

has_cards() { [ "$(get attributes/ftctl-cards)" != 0 ]; }

# Waits for the driver to install itself, or for ftctl to submit the job.
wait_for() { # wait_for SECONDS COMMAND...
    local left="$1"; shift
    until "$@" >/dev/null 2>&1; do
        [ "$left" -gt 0 ] || return 1
        left=$((left - 1))
        sleep 1
    done
}

is_googles() { case "$1" in gcr.io | *.gcr.io | *-docker.pkg.dev) ;; *) return 1 ;; esac }

sign_in() { # sign_in REGISTRY: as the machine's service account
    token | docker login --username oauth2accesstoken --password-stdin "https://$1" >/dev/null 2>&1
}

pull() ( # the sign-in to Google's registry lasts as long as this
    registry="${image%%/*}"
    ! is_googles "$registry" || export DOCKER_CONFIG="$secrets/docker"
    for try in 1 2 3; do
        ! is_googles "$registry" || sign_in "$registry"
        ! docker pull --quiet "$image" || { rm -rf "$secrets/docker"; exit 0; }
        sleep "$try"
    done
    exit 1
)

# The container is on this machine's network. Its programs must not ask for the machine's tokens and metadata. The same address
# resolves names (port 53). Machines of ftctl have no IPv6.
close_metadata() {
    iptables -w -I OUTPUT -d 169.254.169.254 -p tcp ! --dport 53 -m owner --uid-owner "$user" -j REJECT
}

preempted() { # returns when the cloud announces a preemption
    local version=NONE answer
    while :; do
        answer="$(curl -s --max-time 70 -D - -H 'Metadata-Flavor: Google' \
            "$metadata/preempted?wait_for_change=true&timeout_sec=60&last_etag=$version" | tr -d '\r')"
        [ "${answer##*$'\n'}" != TRUE ] || return 0
        version="$(sed -n 's/^[Ee][Tt]ag: *//p' <<<"$answer")"
        [ -n "$version" ] || { version=NONE; sleep 1; }
    done
}

pass_notice_on() { # the agent knows the signal, and cannot ask the cloud itself
    preempted
    until docker kill --signal TERM ftctl >/dev/null 2>&1; do sleep 1; done
}

echo "ftctl: this is $(get name)"
beat &
group="$(get attributes/ftctl-group)"
docker info >/dev/null || give_up "there is no docker that works on this machine: choose a boot image that has it"
mkdir -p "$home/work" "$home/cache"
(umask 077; mkdir -p "$secrets/agent")
image="$(get attributes/ftctl-image)"
tell phase pulling
pull || give_up "the image $image cannot be pulled by this machine: is it in a registry that the machine may read?"
cards=()
if has_cards; then
    tell phase driver
    # Deep-learning images install their driver after the first start. Where nothing installs one, waiting costs money.
    patience=30
    [ -d /opt/deeplearning ] && patience=300
    wait_for "$patience" nvidia-smi ||
        give_up "the driver of the GPU did not come up within $patience s: choose a boot image with one that knows this GPU"
    nvidia-smi -L
    cards=(--gpus all)
fi
close_metadata ||
    give_up "the container cannot be kept from this machine's metadata: choose a boot image with an iptables that knows the owner of a process"
tell phase waiting
if ! wait_for 600 get attributes/ftctl-order; then
    # Not a failure of the machine: a later submission gets another one.
    echo "ftctl: no order came within ten minutes"
    switch_off
    exit
fi
get attributes/ftctl-order >"$home/order.json"
if ! (umask 077; get attributes/ftctl-environment >"$secrets/agent/environment.json") && [ -e "$home/begun" ]; then
    # Not a failure either: the next attempt has a machine and a signature of its own.
    echo "ftctl: this machine has started again, and its signature for the store is gone"
    switch_off
    exit
fi
touch "$home/begun"

chown -R "$user:$user" "$home" "$secrets/agent" 2>/dev/null
tell phase running
echo "ftctl: starting the agent from $image"
pass_notice_on &
docker run --rm --name ftctl --network host --ipc host --stop-timeout 30 --user "$user:$user" --cap-drop ALL \
    --security-opt no-new-privileges --pids-limit 16384 "${cards[@]}" --env "XDG_CACHE_HOME=$home/cache" --env "XDG_STATE_HOME=$home/state" \
    --volume "$home:$home" --volume "$secrets/agent:$secrets/agent" "$image" \
    --order "$home/order.json" --work "$home/work" --environment "$secrets/agent/environment.json"
code=$?
rm -rf "$secrets"
echo "ftctl: the agent ended with code $code"
# 6: preempted, and another attempt is due. An engine that shuts down may not let the agent say so.
if [ "$code" = 6 ] || [ "$(get preempted)" = TRUE ]; then
    poweroff
    exit
fi
# 125 to 127: no agent ever ran.
case "$code" in 4 | 7) give_up "the agent cannot use its store from this machine (code $code)" ;; esac
[ "$code" -lt 125 ] || [ "$code" -gt 127 ] || give_up "the container of $image cannot be started (code $code)"
tell phase over
[ "$code" = 0 ] || { switch_off; exit; }
# The job is over: a group would start again. Deleting it deletes this machine.
ask_group DELETE ''
poweroff
