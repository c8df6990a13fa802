//! Placement plans as the store keeps them. The controller defines the content of a plan.

/// State of a placement plan.
///
/// ```text
///             apply            last step done
///  Proposed ---------> Applying -------------> Done
///                       |    ^
///  stopped, or a step   |    | apply
///  cannot be done       v    |
///                      Stopped
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanState {
    /// No step has started.
    Proposed,
    /// Steps are being carried out.
    Applying,
    /// All steps are done.
    Done,
    /// The plan was stopped, or a step could not be done. It can be applied again.
    Stopped,
}

impl PlanState {
    /// The state as the database and the API write it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Applying => "applying",
            Self::Done => "done",
            Self::Stopped => "stopped",
        }
    }

    /// The inverse of [`PlanState::text`].
    pub fn read(text: &str) -> Option<Self> {
        [Self::Proposed, Self::Applying, Self::Done, Self::Stopped]
            .into_iter()
            .find(|state| state.text() == text)
    }
}

/// Progress of a placement plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanProgress {
    pub id: u64,
    /// Time at which the plan was computed, in milliseconds of the UNIX epoch.
    pub created_ms: u64,
    pub state: PlanState,
    /// Number of steps.
    pub steps: u64,
    /// Number of steps done, counted from the first.
    pub done: u64,
    /// Number of steps that may be in progress at the same time.
    pub parallel: u64,
    /// Reason why the plan was stopped, or empty.
    pub note: String,
}

/// A placement plan with its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPlan {
    pub progress: PlanProgress,
    /// The steps, in the encoding of the controller.
    pub body: String,
}
