# SPDX-License-Identifier: Apache-2.0
# Adds up the results of every test binary in the output of `cargo test`.
#
# Prints "PASSED FAILED". A binary that died says nothing, so cargo's own report of it counts as one.
/^test result: / {
    for (i = 3; i < NF; i++) {
        if ($(i + 1) == "passed;") passed += $i
        if ($(i + 1) == "failed;") failed += $i
    }
}
/process didn't exit successfully/ && /\(signal:/ { failed++ }
END { print passed + 0, failed + 0 }
