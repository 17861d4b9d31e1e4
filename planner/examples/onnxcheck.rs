//! Compares with the truth.
use allotment_planner::{graph::*, import::onnx::*, read::read_instance};
use std::collections::*;
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    for m in ["kws_dscnn", "resnet8_cifar", "encoder2_dyn", "unet_w8"] {
        let bytes = std::fs::read(format!("{dir}/{m}.onnx")).unwrap();
        let dims: BTreeMap<String, u64> = if m.starts_with("enc") { [("batch".into(), 1), ("seq".into(), 64)].into() } else if m.starts_with("kws") { BTreeMap::new() } else { [("batch".into(), 1)].into() };
        let g = match read_onnx(&bytes, &dims) { Ok(g) => g, Err(e) => { println!("{m}: {e}"); continue } };
        let j: serde_json::Value = serde_json::from_slice(&std::fs::read(format!("{dir}/{m}.concrete.json")).unwrap()).unwrap();
        let (mut ok, mut bad) = (0, 0);
        for (name, t) in j["tensors"].as_object().unwrap() {
            let dims: Vec<u64> = t["dims"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
            match g.tensors.iter().find(|x| &x.name == name) {
                Some(x) if x.shape == dims && x.dtype == t["dtype"].as_str().unwrap() => ok += 1,
                x => { bad += 1; println!("{name}: {t} vs {x:?}") }
            }
        }
        let truth = read_instance(format!("{dir}/{m}.plan.csv").as_ref()).unwrap();
        let key = |i: &allotment_planner::model::Instance| { let mut v: Vec<_> = i.buffers().iter().map(|b| (b.start, b.end, b.size)).collect(); v.sort(); v };
        let mine = g.instance(Lowering { align: 256, ..Lowering::default() }).unwrap();
        println!("{m}: shapes ok {ok} bad {bad}; plan equal {} ({} vs {})  kinds {:?}", key(&mine) == key(&truth), mine.len(), truth.len(), g.kinds());
        let (a, b) = (key(&mine), key(&truth));
        println!("{:?}", a.iter().filter(|x| !b.contains(x)).take(9).collect::<Vec<_>>());
        println!("{:?}", b.iter().filter(|x| !a.contains(x)).take(9).collect::<Vec<_>>());
    }
}
