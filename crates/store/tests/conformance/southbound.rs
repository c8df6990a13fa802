//! Node states, enrollment tokens, and the certificate authority.

use crate::Fixture;
use crate::cloud::{Cloud, host, new};
use sluice_store::{EnrollmentToken, NewGateway, NodeId, NodeState, StoreError};
use sluice_types::{GatewayId, HostId};

pub async fn node_states(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let before = s.revision().await.unwrap();
    assert!(s.node_states().await.unwrap().is_empty());
    let mut state = NodeState {
        node: NodeId::Host(c.host.id),
        acknowledged_revision: 3,
        last_seen_ms: 1_000,
        failures: vec![],
    };
    s.save_node_states(&[state.clone()]).await.unwrap();
    state.acknowledged_revision = 7;
    state.last_seen_ms = 1_700_000_000_000;
    state.failures = vec!["table `vrf` is full".into(), "\"quoted\", and ü".into()];
    s.save_node_states(&[state.clone()]).await.unwrap();
    assert_eq!(s.node_states().await.unwrap(), [state.clone()]);
    assert_eq!(s.revision().await.unwrap(), before, "no object was changed");
    let other = new(s.create_host(host("other", "192.0.2.99")).await).id;
    let ghosts = [NodeId::Gateway(GatewayId::new(999)), NodeId::Host(HostId::new(999))];
    let of = |node| NodeState { node, acknowledged_revision: 8, ..state.clone() };
    s.save_node_states(&[of(ghosts[0]), of(NodeId::Host(other)), of(ghosts[1])]).await.unwrap();
    assert_eq!(
        s.node_states().await.unwrap(),
        [state.clone(), of(NodeId::Host(other))],
        "existing nodes only"
    );
    s.save_node_states(&[]).await.unwrap();
    s.delete_host(other, None).await.unwrap();
    s.delete_host(c.host.id, None).await.unwrap();
    assert!(s.node_states().await.unwrap().is_empty(), "it goes with its node");
}

/// More states than one statement has, and a number that no sequence of equal statements has.
pub async fn many_node_states(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let mut states = Vec::new();
    for number in 1..=150u64 {
        let new_host = host(&format!("many-{number}"), &format!("198.18.0.{number}"));
        states.push(NodeState {
            node: NodeId::Host(new(s.create_host(new_host).await).id),
            acknowledged_revision: number,
            last_seen_ms: 1_000 + number,
            failures: vec![],
        });
    }
    s.save_node_states(&states).await.unwrap();
    assert_eq!(s.node_states().await.unwrap(), states);
    for state in &mut states {
        state.acknowledged_revision += 1_000;
    }
    s.save_node_states(&states).await.unwrap();
    assert_eq!(s.node_states().await.unwrap(), states);
}

/// Writes that come later are done first.
pub async fn node_states_are_saved_after_other_writes(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let state = NodeState {
        node: NodeId::Host(c.host.id),
        acknowledged_revision: 3,
        last_seen_ms: 1_000,
        failures: vec![],
    };
    let done = std::sync::Mutex::new(Vec::new());
    let create = async |number: u32| {
        s.create_tenant(&format!("t{number}")).await.unwrap();
        done.lock().unwrap().push("create");
    };
    let save = async {
        s.save_node_states(std::slice::from_ref(&state)).await.unwrap();
        done.lock().unwrap().push("save");
    };
    let later = async {
        futures::future::join_all((1..10).map(create)).await;
    };
    futures::join!(create(0), save, later);
    let done = done.into_inner().unwrap();
    assert_eq!(done.len(), 11);
    assert_eq!(done.last(), Some(&"save"), "{done:?}");
}

pub async fn tokens_work_once(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let gateway = NewGateway {
        name: "g".into(),
        cluster: c.cluster.id,
        vtep4: Some("192.0.2.10".parse().unwrap()),
        vtep6: None,
    };
    let gateway = NodeId::Gateway(new(s.create_gateway(gateway).await).id);
    let host = NodeId::Host(c.host.id);
    for (digest, node) in [([1; 32], gateway), ([2; 32], host), ([3; 32], host)] {
        s.add_enrollment_token(digest, EnrollmentToken { node, expires_ms: 5_000 }, 0).await.unwrap();
    }
    assert_eq!(s.take_enrollment_token([9; 32], 1_000).await.unwrap(), None, "unknown");
    assert_eq!(s.take_enrollment_token([1; 32], 4_999).await.unwrap(), Some(gateway));
    assert_eq!(s.take_enrollment_token([1; 32], 4_999).await.unwrap(), None, "used");
    let tries: Vec<_> = (0..8)
        .map(|_| {
            let s = s.clone();
            tokio::spawn(async move { s.take_enrollment_token([3; 32], 1_000).await.unwrap() })
        })
        .collect();
    let mut taken = 0;
    for task in tries {
        taken += usize::from(task.await.unwrap().is_some());
    }
    assert_eq!(taken, 1, "by one of many");
    assert_eq!(s.take_enrollment_token([2; 32], 5_000).await.unwrap(), None, "expired");
    let ghost = EnrollmentToken { node: NodeId::Host(HostId::new(999)), expires_ms: 5_000 };
    assert!(matches!(s.add_enrollment_token([4; 32], ghost, 0).await, Err(StoreError::NotFound { .. })));
    let token = |expires_ms| EnrollmentToken { node: host, expires_ms };
    s.add_enrollment_token([5; 32], token(5_000), 0).await.unwrap();
    s.add_enrollment_token([6; 32], token(6_000), 5_000).await.unwrap();
    assert_eq!(s.take_enrollment_token([5; 32], 1_000).await.unwrap(), None, "expired before the other came");
    s.delete_host(c.host.id, None).await.unwrap();
    assert_eq!(s.take_enrollment_token([6; 32], 5_000).await.unwrap(), None, "its node is gone");
}

pub async fn the_first_authority_stays(f: Fixture) {
    let tasks: Vec<_> = (0..6)
        .map(|i| {
            let s = f.store.clone();
            tokio::spawn(async move {
                s.certificate_authority((format!("cert {i}"), format!("key {i}"))).await.unwrap()
            })
        })
        .collect();
    let mut answers = std::collections::BTreeSet::new();
    for task in tasks {
        answers.insert(task.await.unwrap());
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
    let first = answers.pop_first().unwrap();
    assert_eq!(first.0.replace("cert", "key"), first.1, "a pair");
    let later = f.store.certificate_authority(("cert x".into(), "key x".into())).await.unwrap();
    assert_eq!(later, first);
}

pub async fn writable(f: Fixture) {
    let before = f.store.revision().await.unwrap();
    for _ in 0..3 {
        f.store.check_writable().await.unwrap();
    }
    assert_eq!(f.store.revision().await.unwrap(), before);
}
