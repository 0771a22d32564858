//! Units that are kept for one request, and units near to each other: for any groups, in any order.

use std::collections::BTreeMap;

use backhaul_placement::resources::{
    Coupled, Declaration, Indexed, LeaseId, Pools, Quantity, Request, UnitId,
};
use proptest::prelude::*;

fn grouped(sizes: &[u32]) -> Indexed {
    let mut next = 0;
    let mut groups = Vec::new();
    for size in sizes {
        groups.push((next..next + size).collect());
        next += size;
    }
    Indexed::grouped(groups)
}

fn pools(declared: &[(&str, Declaration)]) -> Pools {
    let declared = declared
        .iter()
        .map(|(name, pool)| ((*name).to_owned(), pool.clone()));
    Pools::new(&declared.collect()).expect("it makes sense")
}

fn request(needs: &[(&str, f64)]) -> Request {
    Request::new(needs.iter().copied(), []).expect("it makes sense")
}

fn take(pools: &mut Pools, request: &Request) -> Option<LeaseId> {
    pools
        .take(request, &BTreeMap::new())
        .expect("it can be met")
}

fn ids(pools: &Pools, lease: LeaseId, resource: &str) -> Vec<UnitId> {
    let held = pools.held(lease).expect("it was taken");
    held.units[resource].iter().map(|(id, _)| *id).collect()
}

/// Two sockets with two GPUs, one NIC and four cores each; of the devices it is said what is near
fn two_sockets() -> Vec<(&'static str, Declaration)> {
    let mut gpus = grouped(&[2, 2]);
    for gpu in 0..4 {
        let socket = gpu / 2;
        let cores = (4 * socket..4 * socket + 4).map(|id| Coupled {
            resource: "CORE".to_owned(),
            id,
        });
        let nic = Coupled {
            resource: "NIC".to_owned(),
            id: socket,
        };
        gpus.coupled.insert(gpu, cores.chain([nic]).collect());
    }
    vec![
        ("CORE", Declaration::Indexed(grouped(&[4, 4]))),
        ("GPU", Declaration::Indexed(gpus)),
        ("NIC", Declaration::Indexed(Indexed::counted(2))),
    ]
}

#[test]
fn units_of_all_pools_are_taken_near_to_each_other() {
    let mut pools = pools(&two_sockets());
    let all = request(&[("CORE", 3.0), ("GPU", 1.0), ("NIC", 1.0)]);
    for socket in [0, 1] {
        let lease = take(&mut pools, &all).expect("it is free");
        let near = |id: UnitId, units: UnitId| id / units == socket;
        assert!(ids(&pools, lease, "CORE").iter().all(|&id| near(id, 4)));
        assert!(ids(&pools, lease, "GPU").iter().all(|&id| near(id, 2)));
        assert_eq!(ids(&pools, lease, "NIC"), [socket]);
    }
}

#[test]
fn a_gpu_is_chosen_for_the_cores_that_are_free_near_it() {
    let mut pools = pools(&two_sockets());
    // A request for cores alone begins with the first socket.
    take(&mut pools, &request(&[("CORE", 3.0)])).expect("it is free");
    let both = take(&mut pools, &request(&[("CORE", 2.0), ("GPU", 1.0)])).expect("it is free");
    assert_eq!(ids(&pools, both, "GPU"), [2]);
    assert_eq!(ids(&pools, both, "CORE"), [4, 5]);
}

#[test]
fn the_unit_of_the_inputs_comes_first_and_the_rest_is_near_to_it() {
    let mut pools = pools(&two_sockets());
    let needs = [("CORE", 2.0), ("GPU", 1.0), ("NIC", 1.0)];
    let request = Request::new(needs, ["GPU"]).expect("it makes sense");
    let inputs = BTreeMap::from([("GPU".to_owned(), vec![(3, 1e6)])]);
    let lease = pools.take(&request, &inputs).expect("it can be met");
    let lease = lease.expect("it is free");
    assert_eq!(ids(&pools, lease, "GPU"), [3]);
    assert_eq!(ids(&pools, lease, "NIC"), [1]);
    assert_eq!(ids(&pools, lease, "CORE"), [4, 5]);
}

#[test]
fn what_is_near_is_a_wish_and_nothing_to_wait_for() {
    let mut pools = pools(&two_sockets());
    take(&mut pools, &request(&[("NIC", 2.0)])).expect("it is free");
    let near = take(&mut pools, &request(&[("GPU", 4.0), ("CORE", 1.0)]));
    assert!(near.is_some());
    assert_eq!(
        take(&mut pools, &request(&[("GPU", 1.0), ("NIC", 1.0)])),
        None
    );
}

#[test]
fn two_that_want_all_do_not_keep_it_from_each_other() {
    let mut pools = pools(&[
        ("GPU", Declaration::Indexed(grouped(&[2]))),
        ("MEMORY", Declaration::Sum(10.0)),
    ]);
    let one = request(&[("GPU", 1.0)]);
    let pair = request(&[("GPU", 2.0)]);
    let both = request(&[("GPU", 2.0), ("MEMORY", 10.0)]);
    let first = take(&mut pools, &one).expect("it is free");
    assert_eq!(pools.keep_for(&both, None), Ok(true));
    assert_eq!(pools.keep_for(&both, None), Ok(true));
    assert_eq!(pools.keep_for(&pair, None), Ok(false));
    assert_eq!(take(&mut pools, &one), None);
    assert_eq!(take(&mut pools, &request(&[("MEMORY", 1.0)])), None);
    assert_eq!(pools.is_free(&both), Ok(false));
    pools.give_back(first).expect("it was taken");
    assert_eq!(pools.is_free(&pair), Ok(false));
    assert_eq!(pools.is_free(&both), Ok(true));
    let held = take(&mut pools, &both).expect("it was kept");
    assert_eq!(pools.kept_for(), None);
    assert_eq!(pools.keep_for(&pair, None), Ok(true));
    pools.give_back(held).expect("it was taken");
    assert_eq!(take(&mut pools, &one), None);
    // No request waits with it any more.
    pools.keep_no_longer();
    assert!(take(&mut pools, &one).is_some());
    let only = ["MEMORY".to_owned()];
    assert_eq!(pools.keep_for(&both, Some(&only)), Ok(true));
    assert!(take(&mut pools, &one).is_some());
    assert_eq!(take(&mut pools, &request(&[("MEMORY", 1.0)])), None);
}

#[test]
fn a_new_declaration_keeps_nothing() {
    let mut pools = pools(&[("GPU", Declaration::Indexed(grouped(&[2])))]);
    pools
        .keep_for(&request(&[("GPU", 2.0)]), None)
        .expect("it can be met");
    let fewer = Declaration::Indexed(grouped(&[1]));
    pools
        .declare(&BTreeMap::from([("GPU".to_owned(), fewer)]))
        .expect("it makes sense");
    assert!(take(&mut pools, &request(&[("GPU", 1.0)])).is_some());
}

proptest! {
    /// With any other requests meanwhile: the request that units are kept for waits for their
    /// holders, and for no request that comes later
    #[test]
    fn what_is_kept_is_had_once_its_holders_have_given_it_back(
        sizes in prop::collection::vec(1..5_u32, 1..4),
        kept in 1..8_u32,
        sum in 0..10_u32,
        before in prop::collection::vec((1..30_u32, 0..5_u32), 0..12),
        later in prop::collection::vec((1..30_u32, 0..5_u32), 0..40),
    ) {
        let units: u32 = sizes.iter().sum();
        let mut pools = pools(&[
            ("GPU", Declaration::Indexed(grouped(&sizes))),
            ("MEMORY", Declaration::Sum(10.0)),
        ]);
        // Shares below ten tenths, then whole units
        let asked = |(tenths, sum): (u32, u32)| {
            let gpus = if tenths < 10 { f64::from(tenths) / 10.0 } else { f64::from(tenths / 10) };
            request(&[("GPU", gpus.min(f64::from(units))), ("MEMORY", f64::from(sum))])
        };
        let wanted = request(&[("GPU", f64::from(kept.min(units))), ("MEMORY", f64::from(sum))]);
        let mut holders: Vec<LeaseId> = before
            .into_iter()
            .filter_map(|each| take(&mut pools, &asked(each)))
            .collect();
        prop_assert_eq!(pools.keep_for(&wanted, None), Ok(true));
        let mut others: Vec<LeaseId> = Vec::new();
        for (number, each) in later.into_iter().enumerate() {
            let each = asked(each);
            if each != wanted {
                others.extend(take(&mut pools, &each));
            }
            if number % 3 == 2 && let Some(ended) = holders.pop() {
                pools.give_back(ended).expect("it was taken");
            }
        }
        for ended in holders {
            pools.give_back(ended).expect("it was taken");
        }
        // Later leases still hold their units.
        let lease = take(&mut pools, &wanted);
        prop_assert!(lease.is_some(), "kept for {wanted:?} beside {} others", others.len());
        for ended in others.into_iter().chain(lease) {
            pools.give_back(ended).expect("it was taken");
        }
        for (name, total, free) in pools.amounts() {
            prop_assert_eq!(total, free, "all of {} has come back", name);
        }
        prop_assert_eq!(pools.amounts().next().map(|(_, total, _)| total), Some(Quantity::whole(units)));
    }
}
