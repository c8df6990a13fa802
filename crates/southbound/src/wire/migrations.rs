//! Messages of live migrations.

use super::{Malformed, Result, address, instance_id, unicast};
use crate::entries::{MigrationPhase, MigrationSide, MigrationState, PortMigration};
use crate::proto;
use sluice_types::{MigrationKey, SessionMode};

/// Longest text of a problem in bytes; the controller shows it to people.
const MAX_PROBLEM_BYTES: usize = 256;

impl From<PortMigration> for proto::PortMigration {
    fn from(migration: PortMigration) -> Self {
        let (incoming_from, outgoing_to) = match migration.side {
            MigrationSide::Incoming { from } => (Some(from.into()), None),
            MigrationSide::Outgoing { to } => (None, Some(to.into())),
        };
        let sessions = match migration.sessions {
            SessionMode::Copy => proto::SessionMode::Copy,
            SessionMode::Reset => proto::SessionMode::Reset,
            SessionMode::None => proto::SessionMode::None,
        };
        Self {
            id: migration.id,
            key: migration.key.bytes().to_vec(),
            incoming_from,
            outgoing_to,
            sessions: sessions.into(),
        }
    }
}

impl TryFrom<proto::PortMigration> for PortMigration {
    type Error = Malformed;
    fn try_from(message: proto::PortMigration) -> Result<Self> {
        let proto::PortMigration { id, key, incoming_from, outgoing_to, sessions } = message;
        let id = migration_id(id)?;
        let key: [u8; 32] = key.try_into().map_err(|_| Malformed::Migration(id, "no key of 32 bytes"))?;
        let vtep = |message| unicast("migration", address(Some(message), "migration")?);
        let side = match (incoming_from, outgoing_to) {
            (Some(from), None) => MigrationSide::Incoming { from: vtep(from)? },
            (None, Some(to)) => MigrationSide::Outgoing { to: vtep(to)? },
            _ => return Err(Malformed::Migration(id, "not exactly one other host")),
        };
        let sessions = match proto::SessionMode::try_from(sessions) {
            Ok(proto::SessionMode::Copy) => SessionMode::Copy,
            Ok(proto::SessionMode::Reset) => SessionMode::Reset,
            Ok(proto::SessionMode::None) => SessionMode::None,
            Ok(proto::SessionMode::Unspecified) | Err(_) => {
                return Err(Malformed::Migration(id, "a mode of sessions that this version does not know"));
            }
        };
        Ok(Self { id, key: MigrationKey::new(key), side, sessions })
    }
}

fn migration_id(id: u64) -> Result<u64> {
    if id == 0 || i64::try_from(id).is_err() { Err(Malformed::Id(id, "migration")) } else { Ok(id) }
}

impl From<MigrationState> for proto::MigrationState {
    fn from(state: MigrationState) -> Self {
        let phase = match state.phase {
            MigrationPhase::Waiting => proto::MigrationPhase::Waiting,
            MigrationPhase::Ready => proto::MigrationPhase::Ready,
            MigrationPhase::Switched => proto::MigrationPhase::Switched,
            MigrationPhase::Failed => proto::MigrationPhase::Failed,
        };
        Self {
            instance: state.instance.get(),
            migration: state.migration,
            phase: phase.into(),
            sessions: state.sessions,
            problem: state.problem,
        }
    }
}

impl TryFrom<proto::MigrationState> for MigrationState {
    type Error = Malformed;
    fn try_from(message: proto::MigrationState) -> Result<Self> {
        let proto::MigrationState { instance, migration, phase, sessions, mut problem } = message;
        let migration = migration_id(migration)?;
        let phase = match proto::MigrationPhase::try_from(phase) {
            Ok(proto::MigrationPhase::Waiting) => MigrationPhase::Waiting,
            Ok(proto::MigrationPhase::Ready) => MigrationPhase::Ready,
            Ok(proto::MigrationPhase::Switched) => MigrationPhase::Switched,
            Ok(proto::MigrationPhase::Failed) => MigrationPhase::Failed,
            Ok(proto::MigrationPhase::Unspecified) | Err(_) => {
                return Err(Malformed::Migration(migration, "a phase that this version does not know"));
            }
        };
        if i64::try_from(sessions).is_err() {
            return Err(Malformed::Migration(migration, "an impossible number of sessions"));
        }
        problem.truncate(problem.floor_char_boundary(MAX_PROBLEM_BYTES));
        problem.retain(|letter| !letter.is_control());
        Ok(Self { instance: instance_id(instance)?, migration, phase, sessions, problem })
    }
}
