// SPDX-License-Identifier: Apache-2.0
//! Tests of the header against the code; `scripts/test_c.sh` compiles and runs the programs.

mod header;
