#!/bin/sh
# The server never is root. A container that begins as root, as TGI's do, gives it up here: for the owner of the folder
# that models are kept in, else for `textgen`, which is made its owner. With --user, or runAsUser, it begins as that one.
set -eu

server="python3 -m textgen.launcher.container"
if [ "$(id -u)" != 0 ]; then
    exec $server "$@"
fi

volume=${HF_HOME:-/data}
owner=$(stat -c %u "$volume" 2> /dev/null || echo 0)
group=$(stat -c %g "$volume" 2> /dev/null || echo 0)
[ "$owner" != 0 ] || owner=$(id -u textgen)
[ "$group" != 0 ] || group=$(id -g textgen)
# Groups that the runtime gave, such as a pod's fsGroup, are kept.
others=$(id -G | tr ' ' '\n' | grep -vx 0 | paste -sd, -)
become="--reuid=$owner --regid=$group --no-new-privs"
if [ -n "$others" ]; then
    become="$become --groups=$others"
else
    become="$become --clear-groups"
fi

# Port 80 is a privilege in some runtimes, and the only one that is kept; where even that may not be, none is.
for kept in "-all,+net_bind_service" "-all"; do
    if setpriv $become --inh-caps="$kept" --ambient-caps="$kept" true 2> /dev/null; then
        # A volume that is root's, and what TGI left there. One that is read-only, or another machine's, stays as it is.
        find "$volume" -xdev -uid 0 -exec chown -h "$owner" {} + 2> /dev/null || true
        exec setpriv $become --inh-caps="$kept" --ambient-caps="$kept" $server "$@"
    fi
done
echo "warning: this container may not give up root, for want of SETUID and SETGID; start it with --user $owner" >&2
[ -w "$volume" ] || echo "warning: this root without powers may not write to $volume, where models are kept" >&2
exec $server "$@"
