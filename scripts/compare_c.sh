#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the same loops in C and in Rust in turn, and prints the medians of their rates and the ratios.
#
# usage: scripts/compare_c.sh [ROUNDS] [RECORDS] [FILES]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly rounds=${1:-5} records=${2:-2000000} files=${3:-500000}
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT

make --quiet c
rates=$(cargo bench --quiet -p esker-c --features s3 --bench rates --no-run --message-format=json \
    | sed -n 's|.*"executable":"\([^"]*\)".*|\1|p')
scripts/install_c.sh "$top/usr" >/dev/null
cc -O2 -std=c11 -D_GNU_SOURCE bindings/c/benches/rates.c -I"$top/usr/include" \
    -L"$top/usr/lib" -lesker -Wl,-rpath,"$top/usr/lib" -o "$top/rates"
for ((round = 0; round < rounds; round++)); do
    for language in c rust; do
        program=$top/rates
        [ $language = c ] || program=$rates
        mkdir "$top/work"
        "$program" "$top/work" "$records" "$files" | sed "s/^/$language /" >>"$top/results"
        rm -rf "$top/work"
    done
done

# median LANGUAGE WHAT
median() {
    awk -v l="$1" -v w="$2" '$1 == l && $2 == w { print $3 }' "$top/results" | sort -n \
        | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'
}
printf '%-18s %12s %12s %6s\n' 'k/s' C Rust ratio
for what in append append+flush append_many append_many+flush create stat; do
    of_c=$(median c $what) of_rust=$(median rust $what)
    printf '%-18s %12s %12s %6.2f\n' $what "$of_c" "$of_rust" "$(bc -l <<<"$of_c / $of_rust")"
done
