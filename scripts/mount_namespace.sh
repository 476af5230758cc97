# SPDX-License-Identifier: Apache-2.0
# Functions of test scripts that let ordinary users mount, without a change to the machine: the script runs again in a
# mount namespace of its own, where /dev/fuse is open to all and /etc/fuse.conf lets users mount for others.

# in_namespace SCRIPT ARGUMENT...: runs SCRIPT where it may mount what it likes. Where namespaces are forbidden it finds
# the machine as it is, and IN_NAMESPACE empty.
in_namespace() {
    if unshare --mount true 2>/dev/null; then
        IN_NAMESPACE=1 unshare --mount "$@"
    else
        IN_NAMESPACE='' "$@"
    fi
}

# Lets users mount, and mount for others. /dev/shm is the one place where devices work for certain.
open_fuse() {
    [ -n "$IN_NAMESPACE" ] && [ -e /dev/fuse ] || return 0
    mount -t tmpfs -o mode=755 tmpfs /dev/shm
    mknod -m 666 /dev/shm/fuse c 10 229
    mount --bind /dev/shm/fuse /dev/fuse
    [ -e /etc/fuse.conf ] || return 0
    (umask 022 && echo user_allow_other >/dev/shm/fuse.conf)
    mount --bind /dev/shm/fuse.conf /etc/fuse.conf
    chmod 1777 /dev/shm
}
