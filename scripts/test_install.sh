#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build below a temporary directory and tries what was installed: pages, completions,
# examples, unit, and a mount by mount(8)'s helper where this user may mount. Then makes a Debian package
# of the same build, which must install and hold the same files.
#
# usage: scripts/test_install.sh [BINARY]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly binary=$(realpath "${1:-target/debug/esker}")
top=$(mktemp -d)
trap 'umount "$top/at" 2>/dev/null || true; rm -rf "$top"' EXIT
say() { echo "test_install: $*"; }

DESTDIR=$top/root scripts/install.sh /usr "$binary"
readonly installed=$top/root/usr
"$installed/bin/esker" --version
"$installed/bin/esker" bench --version

for page in esker esker-import esker-imd-get esker-session-begin esker-bench esker-bench-create; do
    [ -s "$installed/share/man/man1/$page.1" ] || { say "$page.1 is missing"; exit 1; }
done
for example in rust/snapshot_and_session.rs c/ranks.c c/objects.cpp fortran/heat.f90; do
    [ -s "$installed/share/doc/esker/examples/$example" ] || { say "$example is missing"; exit 1; }
done
# The examples in C and C++ need the headers of the library, and nothing else of the tree.
for example in "$installed"/share/doc/esker/examples/c/*.c*; do
    case $example in *.cpp) compiler=c++ ;; *) compiler=cc ;; esac
    "$compiler" -D_GNU_SOURCE -fsyntax-only -Ibindings/c/include "$example" \
        || { say "$example does not compile"; exit 1; }
done
if command -v man >/dev/null; then
    # In C.UTF-8 man warns of what it cannot show.
    for page in "$installed"/share/man/man1/*.1; do
        warnings=$(LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=80 man --warnings -l "$page" 2>&1 >/dev/null)
        [ -z "$warnings" ] || { say "$page: $warnings"; exit 1; }
    done
fi
bash -n "$installed/share/bash-completion/completions/esker"
if command -v systemd-analyze >/dev/null; then
    unit=$installed/lib/systemd/system/esker-mount@.service
    sed "s|/usr/bin/esker|$installed/bin/esker|" "$unit" >"$top/esker-mount@.service"
    systemd-analyze verify --man=no "$top/esker-mount@headers.service" 2>&1 | grep -i esker && exit 1
fi

scripts/package.sh "$binary" "$top/esker.deb"
mkdir -p "$top/debian/var/lib/dpkg"
touch "$top/debian/var/lib/dpkg/status"
if [ "$EUID" = 0 ]; then
    dpkg --root="$top/debian" --force-depends --install "$top/esker.deb" >"$top/dpkg" 2>&1 \
        || { cat "$top/dpkg"; exit 1; }
else
    dpkg-deb --extract "$top/esker.deb" "$top/debian"
fi
# Pages are compressed in a package, and mount.esker is in /usr/sbin, where /sbin leads on Debian.
files() { (cd "$1" && find usr sbin -type f 2>/dev/null | sed 's|^usr/sbin|sbin|; s|\.1\.gz$|.1|' | sort); }
diff <(files "$top/root") <(files "$top/debian" | grep -v '/copyright$') \
    || { say "the package holds other files than an installation"; exit 1; }
"$top/debian/usr/bin/esker" --version >/dev/null

# As mount(8) calls it.
helper() { ESKER=$installed/bin/esker "$top/root/sbin/mount.esker" "$@"; }
if helper none "$top/at" -o rw,unheard-of 2>/dev/null; then say "an unknown option is taken"; exit 1; fi
for refused in nosuid nodev noexec user ro,write=x; do
    if helper none "$top/at" -o "$refused" 2>/dev/null; then say "$refused is taken"; exit 1; fi
done
helper none "$top/at" -f -o "store=$top/store"
if [ "$EUID" != 0 ] || [ ! -e /dev/fuse ]; then
    say "no mount was tried: this takes the superuser and /dev/fuse"
    exit 0
fi
export ESKER_STORE=$top/store
"$installed/bin/esker" init >/dev/null
mkdir "$top/at" "$top/tree"
echo hello >"$top/tree/file"
"$installed/bin/esker" import "$top/tree" tree >/dev/null
(unset ESKER_STORE && helper tree "$top/at" -n -o "ro,_netdev,store=$top/store,threads=1")
[ "$(cat "$top/at/file")" = hello ]
umount "$top/at"
(unset ESKER_STORE && helper tree "$top/at" -o "store=$top/store,write=next,base=tree")
echo again >"$top/at/second"
"$installed/bin/esker" umount "$top/at" >/dev/null
[ "$("$installed/bin/esker" cat next:/second)" = again ]
say "ok"
