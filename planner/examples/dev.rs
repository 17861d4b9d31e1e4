//! Development.
use allotment_planner::{generate, read::read_instance, solve::*, validate::validate};
use std::time::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let limit: f64 = args[1].parse().unwrap();
    let cap: u64 = args[2].parse().unwrap();
    let total = Instant::now();
    for path in &args[3..] {
        let inst = if let Some(spec) = path.strip_prefix("gen:") {
            let v: Vec<u64> = spec.split(',').map(|x| x.parse().unwrap()).collect();
            generate::perfect_packing(v[0] as usize, v[1] as u32, v[2], v[3])
        } else if let Some(spec) = path.strip_prefix("random:") {
            let v: Vec<u64> = spec.split(',').map(|x| x.parse().unwrap()).collect();
            generate::random(v[0] as usize, v[1] as u32, v[2])
        } else {
            read_instance(path.as_ref()).unwrap()
        };
        let t = Instant::now();
        let s = solve(
            &inst,
            &Options {
                capacity: (cap > 0).then_some(cap),
                time_limit: Duration::from_secs_f64(limit),
                ..Options::default()
            },
            None,
        );
        let dt = t.elapsed();
        validate(&inst, &s.offsets, None).unwrap();
        println!(
            "{} n {} peak {} bound {} +{:.3}% {s} nodes {} {:.1} ms; history {:?}",
            path.rsplit('/').next().unwrap(),
            inst.len(),
            s.peak,
            s.lower_bound,
            s.gap(),
            s.nodes,
            dt.as_secs_f64() * 1e3,
            s.history
                .iter()
                .map(|(d, p)| format!(
                    "{:.1}ms {:.2}%",
                    d.as_secs_f64() * 1e3,
                    (*p as f64 / s.lower_bound as f64 - 1.0) * 100.0
                ))
                .collect::<Vec<_>>()
        );
    }
    println!("total {:.1} ms", total.elapsed().as_secs_f64() * 1e3);
}
