//! Development.

use allotment_planner::{exact::{Limits, skyline::*}, model::*, sections::*, validate::validate};
use std::{sync::atomic::AtomicBool, time::*};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let nodes: u64 = args[1].parse().unwrap();
    let cap: u64 = args[2].parse().unwrap();
    for path in &args[3..] {
        let mut b = vec![];
        let inst = if let Some(spec) = path.strip_prefix("gen:") {
            let v: Vec<u64> = spec.split(',').map(|x| x.parse().unwrap()).collect();
            allotment_planner::generate::perfect_packing(v[0] as usize, v[1] as u32, v[2], v[3])
        } else {
        for line in std::fs::read_to_string(path).unwrap().lines().skip(1) {
            let v: Vec<i64> = line.split(',').map(|x| x.parse().unwrap()).collect();
            b.push(Buffer::new(v[0].to_string(), v[3] as u64, v[1], v[2]));
        }
        Instance::new(b).unwrap() };
        let s = Sections::new(inst.buffers().iter().map(|b| (b.start, b.end)));
        let lb = s.load(|n| inst.buffers()[n].size).into_iter().max().unwrap();
        let cap = if cap == 0 { lb } else { cap };
        fn gcd(a: u64, b: u64) -> u64 { if b == 0 { a } else { gcd(b, a % b) } }
        let unit = inst.buffers().iter().fold(0, |g, b| gcd(g, b.size));
        let p = Problem { first: s.first.clone(), last: s.last.clone(), size: inst.buffers().iter().map(|b| (b.size / unit) as u32).collect(), sections: s.count };
        let stop = AtomicBool::new(false);
        print!("{} n {} sections {} lb {} ", path.rsplit('/').next().unwrap(), inst.len(), s.count, lb);
        for section in [Pick::Fewest, Pick::Lowest, Pick::Narrowest, Pick::LowestLeft] {
            for order in [Order::Area, Order::Size, Order::Length, Order::Total] {
                let t = Instant::now();
                let mut search = Search::new(&p, (cap / unit) as u32);
                let a = search.run(Strategy { order, section, seed: 0 }, &Limits { nodes, deadline: None, stop: &stop });
                let dt = t.elapsed();
                let mark = match &a { Answer::Found(o) => { let o: Vec<u64> = o.iter().map(|&o| u64::from(o) * unit).collect(); validate(&inst, &o, Some(cap)).unwrap(); "FOUND" } Answer::None => "NONE", Answer::Unknown => "-" };
                print!("| {mark} {} {:.0}ms ", search.nodes, dt.as_secs_f64() * 1e3);
            }
            print!(" || ");
        }
        println!();
    }
}
