//! Scratch driver.
use esker_bench::*;
use esker_bench::shape::Shape;
use esker_table::tree::TreeOptions;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let store = esker_base::store::url::open(&args[2]).or_else(|_| esker_base::store::url::init(&args[2])).unwrap();
    let num = |i: usize, d: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(d);
    let q = |cold, absent, ops: u64| QueryOptions { operations: (ops > 0).then_some(ops), threads: num(4,1) as usize, cold, absent };
    let tree = TreeOptions { background: num(6, 0) == 1, ..Default::default() };
    let report = match args[1].as_str() {
        "create" => create(&store, Shape { files: num(3, 1000000), threads: num(4,1) as usize, directories: num(5, 1000) }, tree),
        "stat" => stat(&store, q(false, false, num(3,0))),
        "absent" => stat(&store, q(false, true, num(3,0))),
        "cold" => stat(&store, q(true, false, num(3,0))),
        "coldabsent" => stat(&store, q(true, true, num(3,0))),
        "list" => list(&store, q(false, false, 0)),
        "remove" => remove(&store, num(4,1) as usize, tree),
        _ => panic!(),
    };
    let report = report.unwrap();
    println!("{report}\n{}", serde_json::to_string(&report).unwrap());
}
