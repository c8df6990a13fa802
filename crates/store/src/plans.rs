//! Plans of moves as the store keeps them: what is in one is the controller's to know.

/// What becomes of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanState {
    /// Nothing is done yet.
    Proposed,
    /// It is being carried out.
    Applying,
    /// All steps are behind it.
    Done,
    /// It was stopped, or could not go on; it may be taken up again.
    Stopped,
}

impl PlanState {
    /// As it is written.
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

/// How far a plan is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanProgress {
    /// Its number.
    pub id: u64,
    /// When it was drawn, milliseconds of the UNIX epoch.
    pub created_ms: u64,
    pub state: PlanState,
    pub steps: u64,
    /// Steps behind it, from the first on.
    pub done: u64,
    /// Steps that are made at a time.
    pub parallel: u64,
    /// Why it was stopped.
    pub note: String,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPlan {
    pub progress: PlanProgress,
    /// The steps.
    pub body: String,
}
