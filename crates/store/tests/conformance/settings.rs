//! What the site wants, plans, and counts of instances.

use crate::Fixture;
use crate::cloud::Cloud;
use sluice_store::{Conflict, PlanState, StoreError};

pub async fn set_if_unchanged(f: Fixture) {
    let s = &f.store;
    let before = s.revision().await.unwrap();
    assert_eq!(s.setting("a").await.unwrap(), None);
    assert!(!s.put_setting("a", Some("1"), "2").await.unwrap(), "it is not there");
    assert!(s.put_setting("a", None, "1").await.unwrap());
    assert!(!s.put_setting("a", None, "2").await.unwrap(), "it is there");
    assert!(s.put_setting("a", Some("1"), "{\"b\": \"ü\"}").await.unwrap());
    assert_eq!(s.setting("a").await.unwrap().as_deref(), Some("{\"b\": \"ü\"}"));
    assert_eq!(s.setting("b").await.unwrap(), None);
    assert_eq!(s.revision().await.unwrap(), before, "no object was changed");
}

pub async fn instances_are_counted(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    assert_eq!(s.instance_counts().await.unwrap().1, []);
    for number in 0..5 {
        c.instance(&format!("i{number}")).await;
    }
    let now = s.revision().await.unwrap();
    assert_eq!(s.instance_counts().await.unwrap(), (now, vec![(c.vpc.id, 5)]));
}

pub async fn plans_are_kept_and_one_is_carried_out(f: Fixture) {
    let s = &f.store;
    assert!(matches!(s.plan(1).await, Err(StoreError::NotFound { kind: "plan", .. })));
    assert_eq!(s.add_plan(1_000, 3, "first").await.unwrap(), 1);
    assert_eq!(s.add_plan(2_000, 1, "second").await.unwrap(), 2);
    assert!(!s.note_plan(1, PlanState::Applying, 1, "").await.unwrap(), "nobody carries it out");
    let progress = s.apply_plan(1, 2).await.unwrap();
    assert_eq!((progress.state, progress.parallel, progress.done), (PlanState::Applying, 2, 0));
    let refused = s.apply_plan(2, 1).await;
    assert!(matches!(refused, Err(StoreError::Conflict(Conflict::PlanApplying { plan: 1 }))));
    // Many newer ones do not push it out, as they do the other.
    for number in 3..=20 {
        assert_eq!(s.add_plan(3_000, 0, "more").await.unwrap(), number);
    }
    let ids: Vec<u64> = s.plans().await.unwrap().into_iter().map(|plan| plan.id).collect();
    assert_eq!(ids, [vec![1], (5..=20).collect()].concat());
    assert!(s.note_plan(1, PlanState::Stopped, 1, "why").await.unwrap());
    let stopped = s.plan(1).await.unwrap();
    assert_eq!((stopped.body.as_str(), stopped.progress.done), ("first", 1));
    assert_eq!((stopped.progress.state, stopped.progress.note.as_str()), (PlanState::Stopped, "why"));
    // Taken up again where it was.
    let again = s.apply_plan(1, 1).await.unwrap();
    assert_eq!((again.state, again.done, again.note.as_str()), (PlanState::Applying, 1, ""));
    assert!(s.note_plan(1, PlanState::Done, 3, "").await.unwrap());
    let refused = s.apply_plan(1, 1).await;
    assert!(matches!(refused, Err(StoreError::Conflict(Conflict::PlanDone { plan: 1 }))));
}
