//! Several memories: the placement of buffers and its cost.

use crate::oracle;
use allotment::plan::{Buffer, PlanError, Tier, TieredPlan, plan_tiers, try_plan_tiers};
use proptest::prelude::*;

const SRAM: Tier = Tier { capacity: 100, cost: 1 };
const EXTERNAL: Tier = Tier { capacity: 10_000, cost: 10 };

/// Checks a plan with the painter, tier by tier, and its cost.
fn check<const N: usize, const T: usize>(
    buffers: &[Buffer; N],
    tiers: &[Tier; T],
) -> Result<([usize; N], u128), PlanError> {
    let plan = try_plan_tiers(buffers, tiers)?;
    plan.validate().unwrap();
    let mut cost = 0;
    for (t, tier) in tiers.iter().enumerate() {
        let members: Vec<usize> = (0..N).filter(|&i| plan.tier(i) == t).collect();
        let index = |other: usize| members.iter().position(|&i| i == other);
        let aparts: Vec<Vec<usize>> = members
            .iter()
            .map(|&i| buffers[i].apart.iter().filter_map(|&other| index(other)).collect())
            .collect();
        let within: Vec<Buffer> = members
            .iter()
            .zip(&aparts)
            .map(|(&i, apart)| {
                let mut b = buffers[i].apart_from(apart);
                b.alias = b.alias.and_then(index);
                b
            })
            .collect();
        let offsets: Vec<u64> = members.iter().map(|&i| plan.offset(i)).collect();
        assert_eq!(oracle::paint(&within, &offsets), Ok(plan.peak(t)));
        assert!(plan.peak(t) <= tier.capacity);
        cost += within.iter().map(|b| u128::from(b.size * b.accesses * tier.cost)).sum::<u128>();
    }
    assert_eq!(cost, plan.cost());
    for (i, b) in buffers.iter().enumerate() {
        assert!(b.tier.is_none_or(|tier| tier == plan.tier(i)));
    }
    Ok((std::array::from_fn(|i| plan.tier(i)), plan.cost()))
}

#[test]
fn what_is_used_most_is_fast() {
    let buffers = [
        Buffer::new(80, 0..4).accesses(2),
        Buffer::new(60, 0..2).accesses(5),
        Buffer::new(60, 2..4).accesses(5),
        Buffer::new(40, 0..4).accesses(3),
    ];
    assert_eq!(check(&buffers, &[SRAM, EXTERNAL]), Ok(([1, 0, 0, 0], 1600 + 300 + 300 + 120)));
    // The order of the tiers does not matter.
    assert_eq!(check(&buffers, &[EXTERNAL, SRAM]), Ok(([0, 1, 1, 1], 2320)));
    // With a third tier, not all buffers fit.
    let tiny = Tier { capacity: 40, cost: 0 };
    assert_eq!(check(&buffers, &[SRAM, EXTERNAL, tiny]).unwrap().0[3], 2);
    assert_eq!(check(&buffers, &[SRAM, tiny]), Err(PlanError::NoRoom(0)));
    assert_eq!(check(&buffers, &[]), Err(PlanError::NoRoom(1)));
    assert_eq!(check(&[], &[SRAM]), Ok(([], 0)));
}

#[test]
fn some_have_no_choice() {
    let buffers = [
        Buffer::new(60, 0..4).accesses(9),
        Buffer::new(60, 0..4).tier(0),
        Buffer::new(10, 0..4).fixed(90),
        Buffer::new(10, 0..4).fixed(90).tier(1),
    ];
    assert_eq!(check(&buffers, &[SRAM, EXTERNAL]).unwrap().0, [1, 0, 0, 1]);
    assert_eq!(check(&[Buffer::new(1, 0..1).tier(2)], &[SRAM, EXTERNAL]), Err(PlanError::Tier(0)));
    assert_eq!(check(&[Buffer::new(101, 0..1).tier(0)], &[SRAM]), Err(PlanError::Tier(0)));
    let both = [Buffer::new(60, 0..1).tier(0), Buffer::new(60, 0..1).tier(0)];
    assert_eq!(check(&both, &[SRAM, EXTERNAL]), Err(PlanError::NoRoom(1)));
    // What is never live is still in its memory, under any other.
    assert_eq!(check(&[Buffer::new(60, 0..4), Buffer::new(90, 1..1)], &[SRAM]).unwrap().0, [0, 0]);
    assert_eq!(check(&[Buffer::new(101, 0..0)], &[SRAM]), Err(PlanError::NoRoom(0)));
}

#[test]
fn outputs_take_their_inputs_place_in_the_same_tier() {
    let buffers = [Buffer::new(100, 0..2), Buffer::new(100, 1..3).in_place_of(0)];
    assert_eq!(check(&buffers, &[SRAM, EXTERNAL]).unwrap().0, [0, 0]);
    let apart = [Buffer::new(100, 0..1), Buffer::new(100, 1..3).apart_from(&[0])];
    assert_eq!(check(&apart, &[SRAM, EXTERNAL]).unwrap().0.iter().sum::<usize>(), 1);
}

#[test]
fn tiers_in_a_constant() {
    const BUFFERS: [Buffer; 2] = [Buffer::new(80, 0..4), Buffer::new(60, 2..6).accesses(2)];
    const PLAN: TieredPlan<2, 2> = plan_tiers(&BUFFERS, &[SRAM, EXTERNAL]);
    assert_eq!((PLAN.tier(0), PLAN.tier(1), PLAN.cost()), (1, 0, 920));
}

#[test]
#[should_panic = "a buffer fits in no tier: weights (200 B)"]
fn what_fits_nowhere_is_named() {
    plan_tiers(&[Buffer::new(10, 0..2), Buffer::new(200, 0..1).name("weights")], &[SRAM]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tiered_plans_are_right(
        draws in proptest::collection::vec((0..40u64, 0..4u32, 0..8u64, 1..5u64, 0..9u64, 0..12usize), 10),
        capacities in proptest::array::uniform3((0..150u64, 0..5u64)),
    ) {
        let mut buffers = [Buffer::new(0, 0..1); 10];
        for (i, &(size, shift, start, length, accesses, alias)) in draws.iter().enumerate() {
            buffers[i] = Buffer::new(size, start..start + length).align(1 << shift).accesses(accesses);
            if alias < i {
                buffers[i].alias = Some(alias);
                (buffers[i].start, buffers[i].end) = (buffers[alias].end - 1, buffers[alias].end + length);
            }
            buffers[i].tier = Some(alias).filter(|&tier| tier < 2 && size % 3 == 0);
        }
        let tiers = capacities.map(|(capacity, cost)| Tier { capacity, cost });
        match check(&buffers, &tiers) {
            Ok(_) | Err(PlanError::NoRoom(..) | PlanError::Tier(..)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
