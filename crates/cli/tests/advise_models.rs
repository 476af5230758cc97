// SPDX-License-Identifier: Apache-2.0
//! `esker advise paper`, `model` and the advice itself, as users run them.

use crate::esker::Esker;

#[test]
fn the_paper_is_printed_beside_simulated_storage() {
    let esker = Esker::without_store();
    let said = esker.ok(["advise", "paper"]);
    for part in ["Table 2, OrangeFS, SIMULATED", "310.45", "Figure 15", "contradicts itself"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    let json = esker.json(["advise", "paper", "--report", "paper.html"]);
    let page = std::fs::read_to_string(esker.path("paper.html")).expect("a page");
    assert!(page.contains("<h1>Regressions of simulated dataset</h1>"), "{page}");
    assert_eq!(page.matches("<svg").count(), 6);
    assert_eq!(json[0]["tables"][0]["means"]["count"], 687);
    assert_eq!(json[0]["tables"][1]["means"]["count"], 641);
    assert!(json[0]["contradictions"].as_array().is_some_and(|all| all.len() > 10));
    std::fs::write(esker.path("bad.csv"), "workload,case\na,b\n").expect("written");
    let said = esker.fails(12, ["advise", "paper", "--data", "bad.csv"]);
    assert!(said.contains("bad.csv, line 1: no column `system`"), "{said}");
}

#[test]
fn a_model_is_fitted_and_advises() {
    let esker = Esker::without_store();
    let said = esker.ok(["advise", "model", "--simulated", "--to", "model.json"]);
    assert!(said.contains("1,328 rows, 14 families") && said.contains("SIMULATED"), "{said}");
    assert!(said.contains("always simulated-hyperdex"), "{said}");
    let synth = ["advise", "synth", "hpio", "-p", "8", "-n", "64", "-r", "64K", "-g", "512K"];
    esker.ok([&synth[..], &["-o", "hpio.arrow"]].concat());
    let advise = ["advise", "hpio.arrow", "--model", "model.json", "--device", "hdd"];
    let said = esker.ok([&advise[..], &["--report", "hpio.html"]].concat());
    assert!(said.starts_with("Use simulated-hyperdex: "), "{said}");
    assert!(said.contains("hpio.arrow: 8 processes, 512 requests of 65536 B, with gaps"), "{said}");
    assert!(said.lines().count() <= 24, "{said}");
    let page = std::fs::read_to_string(esker.path("hpio.html")).expect("a page");
    assert!(page.contains("Use simulated-hyperdex") && page.ends_with("</html>\n"), "{page}");
    let json = esker.json(advise);
    assert_eq!(json[0]["verdict"], "better");
    assert_eq!(json[0]["system"], "simulated-hyperdex");
    assert_eq!(json[0]["rates"].as_array().map(Vec::len), Some(2));
}

#[test]
fn what_is_no_trace_or_model_is_refused() {
    let esker = Esker::without_store();
    std::fs::write(esker.path("a.txt"), "no trace").expect("written");
    let said = esker.fails(12, ["advise", "a.txt"]);
    assert!(said.contains("neither a trace nor features"), "{said}");
    let synth = ["advise", "synth", "hpio", "-p", "2", "-n", "4", "-o", "hpio.arrow"];
    esker.ok(synth);
    let said = esker.fails(12, ["advise", "hpio.arrow", "--model", "a.txt"]);
    assert!(said.contains("fit it again with `esker advise model`"), "{said}");
    esker.fails(3, ["advise", "absent.arrow"]);
    // Clap's usage error: neither a trace nor a subcommand.
    esker.fails(2, ["advise"]);
}
