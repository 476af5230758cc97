
#[test]
fn sixteen_processes_write_one_directory() {
    let esker = Esker::new();
    let esker_path = env!("CARGO_BIN_EXE_esker");
    let job = ["run", "-n", "16", "--per-node", "4", "--", esker_path, "imd", "write"];
    let work = ["run:/p", "--transport", "tcp", "--routing", "3hop", "--keys", "4000"];
    let more = ["--epochs", "2", "--rank-memory", "4M"];
    esker.ok(job.iter().chain(&work).chain(&more));
    let info = one(esker.json(["imd", "info", "run:/p", "--queries", "20"]));
    assert_eq!((&info["partitions"], &info["records"]), (&16.into(), &8000.into()));
    esker.ok(["bench", "imd-get", "run:/p", "--operations", "1000"]);
    esker.fails(13, ["imd", "write", "other:/p", "--transport", "tcp"]);
}
