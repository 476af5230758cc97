#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what scripts/compare_workbench.py reads from what other programs print.

usage: scripts/test_compare_workbench.py

The samples have the formats of mdtest 3.4 and 4.0 and of md-workbench in IOR 4.0, whose numbers are made
up.
"""

import unittest

from compare_workbench import figures, parse_md_workbench, parse_mdtest

MDTEST_3 = """\
-- started at 11/07/2023 14:02:14 --

mdtest-3.4.0+dev was launched with 2 total task(s) on 1 node(s)
Command line used: mdtest '-F' '-N' '1' '-n' '100' '-d' '/dev/shm/compare/easy' '-u'
WARNING: Read bytes is 0, thus, a read test will actually just open/close.
Path                : /dev/shm/compare
FS                  : 3.9 GiB   Used FS: 0.0%   Inodes: 1.0 Mi   Used Inodes: 0.0%

Nodemap: 11
2 tasks, 200 files

SUMMARY rate: (of 3 iterations)
   Operation                      Max            Min           Mean        Std Dev
   ---------                      ---            ---           ----        -------
   File creation             :     200000.500     100000.000     150000.250      40824.829
   File stat                 :     900000.000     900000.000     900000.000          0.000
   File read                 :     500000.125     400000.125     450000.125      40824.829
   File removal              :     300000.000     300000.000     300000.000          0.000
   Tree creation             :       4000.000       4000.000       4000.000          0.000
   Tree removal              :       3000.000       3000.000       3000.000          0.000
-- finished at 11/07/2023 14:02:15 --
"""

MDTEST_4 = """\
-- started at 02/11/2025 09:30:00 --

mdtest-4.0.0 was launched with 2 total task(s) on 1 node(s)
Command line used: mdtest '-F' '-C' '-T' '-r' '-n' '100' '-d' '/dev/shm/compare/hard'
Nodemap: 11
2 tasks, 200 files

SUMMARY rate (in ops/sec): (of 1 iterations)
   Operation                     Max            Min           Mean        Std Dev
   ---------                     ---            ---           ----        -------
   File creation                  150000.250     150000.250     150000.250          0.000
   File stat                      900000.000     900000.000     900000.000          0.000
   File read                           0.000          0.000          0.000          0.000
   File removal                   300000.000     300000.000     300000.000          0.000
   Tree creation                    4000.000       4000.000       4000.000          0.000
   Tree removal                     3000.000       3000.000       3000.000          0.000
-- finished at 02/11/2025 09:30:01 --
"""

MD_WORKBENCH = """\
Args: md-workbench "-D" "1" "-P" "200" "-I" "100" "-S" "3901" "-o" "/dev/shm/compare/set"
MD-Workbench total objects: 1000 workingset size: 1.488 MiB (version: 4.0.0) time: 2025-02-11 09:30:00
precreate process max:0.01s min:0.01s mean: 0.01s balance:95.0 stddev:0.0 rate:40200.0 iops/s dsets: 2 \
objects:400 rate:200.000 dset/s rate:40000.0 obj/s tp:148.8 MiB/s op-max:1.2000e-03s (0 errs) \
create(8.0000e-06s, 1.4000e-05s, 1.6000e-05s, 1.7000e-05s, 2.0000e-05s, 7.1000e-05s, 1.2000e-03s)
benchmark process max:0.01s min:0.01s mean: 0.01s balance:83.5 stddev:0.0 rate:80000.0 iops/s \
objects:200 rate:20000.0 obj/s tp:148.8 MiB/s op-max:2.5220e-03s (0 errs) \
read(2.7010e-06s, 3.7360e-06s, 4.1480e-06s, 4.4670e-06s, 4.8230e-06s, 6.2970e-06s, 6.4131e-04s) \
stat(8.7000e-07s, 1.3290e-06s, 1.4510e-06s, 1.5420e-06s, 1.6610e-06s, 2.4170e-06s, 2.5403e-04s) \
create(9.0040e-06s, 1.3441e-05s, 1.5535e-05s, 1.7213e-05s, 1.8804e-05s, 2.7922e-05s, 2.5220e-03s) \
delete(6.6800e-06s, 9.5630e-06s, 1.0681e-05s, 1.1479e-05s, 1.2164e-05s, 1.6695e-05s, 7.6339e-04s)
benchmark process max:0.02s min:0.02s mean: 0.02s balance:99.0 stddev:0.0 rate:40000.0 iops/s \
objects:200 rate:10000.0 obj/s tp:74.4 MiB/s op-max:2.5220e-03s (0 errs)
cleanup process max:0.00s min:0.00s mean: 0.00s balance:99.0 stddev:0.0 rate:90000.0 iops/s \
objects:400 dsets: 2 rate:89000.0 obj/s rate:450.000 dset/s op-max:1.0000e-03s (0 errs)
Total runtime: 0s time: 2025-02-11 09:30:00
"""


class Mdtest(unittest.TestCase):
    def test_means_of_files_are_read(self):
        rates = {name: found["rate"] for name, found in parse_mdtest(MDTEST_3).items()}
        self.assertEqual(rates, {"create": 150000.25, "stat": 9e5, "read": 450000.125, "delete": 3e5})

    def test_version_4_prints_no_colon_and_0_for_what_it_did_not_do(self):
        rates = {name: found["rate"] for name, found in parse_mdtest(MDTEST_4).items()}
        self.assertEqual(rates, {"create": 150000.25, "stat": 9e5, "delete": 3e5})

    def test_other_output_ends_the_comparison(self):
        for printed in ["", "mdtest: command not understood", MDTEST_3.replace("File", "Directory")]:
            with self.assertRaises(SystemExit):
                parse_mdtest(printed)


class MdWorkbench(unittest.TestCase):
    def test_rates_and_latencies_of_the_first_benchmark_are_read(self):
        rows = parse_md_workbench(MD_WORKBENCH)
        self.assertEqual(rows["benchmark"], figures(80000.0))
        self.assertEqual(list(rows)[1:], [f"benchmark {name}" for name in
                                          ["stat", "read", "delete", "create"]])
        expected = {"stat": (1.451, 2.417, 254.03), "read": (4.148, 6.297, 641.31),
                    "delete": (10.681, 16.695, 763.39), "create": (15.535, 27.922, 2522.0)}
        for name, times in expected.items():
            found = rows[f"benchmark {name}"]
            self.assertEqual(found["rate"], 20000.0)
            for key, time in zip(["p50", "p99", "max"], times):
                self.assertAlmostEqual(found[key], time, places=6)

    def test_a_benchmark_without_latencies_has_its_rate(self):
        second = MD_WORKBENCH.split("benchmark process")[2]
        self.assertEqual(parse_md_workbench("benchmark process" + second),
                         {"benchmark": figures(40000.0)})

    def test_failed_calls_and_other_output_end_the_comparison(self):
        failed = MD_WORKBENCH.replace("(0 errs)", "(3 errs!!!)")
        for printed in [failed, "", MD_WORKBENCH.replace("benchmark process", "benchmark")]:
            with self.assertRaises(SystemExit):
                parse_md_workbench(printed)


if __name__ == "__main__":
    unittest.main()
