//! What comes next, and what an event makes of a saga (pure).
//!
//! A step that is RUNNING may be done: its mark was committed before its call. One that is PENDING or FAILED is not. So a
//! worker that finds a saga after a crash reads from the marks alone what is certain and what is not.

use super::{FailureKind, SagaStatus, StepStatus};

/// What the machine knows of a step's definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) attempts: u32,
    pub(super) undo_attempts: u32,
    pub(super) pivot: bool,
    pub(super) remote: bool,
}

/// How far a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) status: StepStatus,
    pub(super) attempts: u32,
    pub(super) undo_attempts: u32,
    /// Whether its local rows were ever committed.
    pub(super) recorded: bool,
}

impl Default for Mark {
    fn default() -> Self {
        Self {
            status: StepStatus::Pending,
            attempts: 0,
            undo_attempts: 0,
            recorded: false,
        }
    }
}

/// How far a saga is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) status: SagaStatus,
    /// How often its compensation, or its end, has failed.
    pub(super) rounds: u32,
    /// One for each step of the definition.
    pub(super) marks: Vec<Mark>,
}

/// How a saga ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    Compensated,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Try a step.
    Do(usize),
    /// A step used up its attempts, the last without a verdict: compensate.
    GiveUp(usize),
    /// Undo a step.
    Undo(usize),
    /// An undo used up its attempts, the last without a verdict: say that it failed.
    Stuck(usize),
    /// Set the final status.
    End(End),
    /// It has its final status.
    Nothing,
    /// No history that this machine writes.
    Illegal(usize),
}

/// Which part of a step has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The remote call.
    Call,
    /// The transaction after it.
    Record,
}

impl Progress {
    pub(super) fn next(&self, shape: &[Shape]) -> Next {
        match self.status {
            SagaStatus::Running => self.next_forward(shape),
            SagaStatus::Compensating | SagaStatus::CompensationFailed => self.next_back(shape),
            SagaStatus::Completed | SagaStatus::Failed | SagaStatus::Compensated => Next::Nothing,
        }
    }

    fn next_forward(&self, shape: &[Shape]) -> Next {
        for (at, (mark, shape_of)) in self.marks.iter().zip(shape).enumerate() {
            match mark.status {
                StepStatus::Completed => {}
                StepStatus::Pending | StepStatus::Running => {
                    let used_up = mark.attempts >= shape_of.attempts;
                    return if used_up && !self.past_pivot(shape) {
                        Next::GiveUp(at)
                    } else {
                        Next::Do(at)
                    };
                }
                StepStatus::Failed
                | StepStatus::Compensating
                | StepStatus::Compensated
                | StepStatus::CompensationFailed => return Next::Illegal(at),
            }
        }
        Next::End(End::Completed)
    }

    fn next_back(&self, shape: &[Shape]) -> Next {
        for (at, (mark, shape)) in self.marks.iter().zip(shape).enumerate().rev() {
            match mark.status {
                StepStatus::Pending | StepStatus::Failed | StepStatus::Compensated => {}
                // Without a call there is only the transaction, and that was not committed.
                StepStatus::Running if !shape.remote => {}
                StepStatus::Compensating
                    if self.status == SagaStatus::Compensating
                        && mark.undo_attempts >= shape.undo_attempts =>
                {
                    return Next::Stuck(at);
                }
                StepStatus::Running
                | StepStatus::Completed
                | StepStatus::Compensating
                | StepStatus::CompensationFailed => return Next::Undo(at),
            }
        }
        Next::End(End::Compensated)
    }

    /// Whether there is no way back.
    pub(super) fn past_pivot(&self, shape: &[Shape]) -> bool {
        let mut steps = self.marks.iter().zip(shape);
        steps.any(|(mark, shape)| shape.pivot && mark.status == StepStatus::Completed)
    }

    /// An attempt begins. Whether an earlier one may have done the step is what [`in_doubt`](Self::in_doubt) said before.
    pub(super) fn begin(&self, step: usize) -> Self {
        self.with(step, |mark| {
            mark.status = StepStatus::Running;
            mark.attempts = mark.attempts.saturating_add(1);
        })
    }

    /// Whether the step may be done, without a mark that says so.
    pub(super) fn in_doubt(&self, step: usize) -> bool {
        self.marks
            .get(step)
            .is_some_and(|mark| mark.status == StepStatus::Running)
    }

    pub(super) fn succeed(&self, step: usize) -> Self {
        self.with(step, |mark| {
            mark.status = StepStatus::Completed;
            mark.recorded = true;
        })
    }

    /// An attempt failed; `in_doubt` is whether an earlier one may have done it all the same.
    pub(super) fn fail(
        &self,
        shape: &[Shape],
        step: usize,
        failure: (FailureKind, Stage),
        in_doubt: bool,
    ) -> Self {
        let (kind, stage) = failure;
        let (Some(mark), Some(shape_of)) = (self.marks.get(step), shape.get(step)) else {
            return self.clone();
        };
        let unsure = in_doubt || kind == FailureKind::Unknown || stage == Stage::Record;
        let may_be_done = shape_of.remote && unsure;
        let hopeless = kind == FailureKind::Refused || mark.attempts >= shape_of.attempts;
        let gives_up = hopeless && !self.past_pivot(shape);
        let mut new = self.with(step, |mark| {
            mark.status = match (may_be_done, gives_up) {
                (true, _) => StepStatus::Running,
                (false, true) => StepStatus::Failed,
                (false, false) => StepStatus::Pending,
            }
        });
        if gives_up {
            new.status = SagaStatus::Compensating;
        }
        new
    }

    /// Compensates because the last attempt of `step` left no verdict.
    pub(super) fn give_up(&self, shape: &[Shape], step: usize) -> Self {
        let may_be_done = self.in_doubt(step) && shape.get(step).is_some_and(|shape| shape.remote);
        let mut new = self.with(step, |mark| {
            if !may_be_done {
                mark.status = StepStatus::Failed;
            }
        });
        new.status = SagaStatus::Compensating;
        new
    }

    pub(super) fn begin_undo(&self, step: usize) -> Self {
        self.with(step, |mark| {
            mark.status = StepStatus::Compensating;
            mark.undo_attempts = mark.undo_attempts.saturating_add(1);
        })
    }

    pub(super) fn undone(&self, step: usize) -> Self {
        let mut new = self.with(step, |mark| mark.status = StepStatus::Compensated);
        new.status = SagaStatus::Compensating;
        new.rounds = 0;
        new
    }

    /// An undo failed. Once a saga is stuck, each further attempt that fails leaves it so.
    pub(super) fn undo_failed(&self, shape: &[Shape], step: usize) -> Self {
        let used_up = match (self.marks.get(step), shape.get(step)) {
            (Some(mark), Some(shape)) => mark.undo_attempts >= shape.undo_attempts,
            _ => false,
        };
        if !used_up && self.status != SagaStatus::CompensationFailed {
            return self.clone();
        }
        let mut new = self.with(step, |mark| mark.status = StepStatus::CompensationFailed);
        new.status = SagaStatus::CompensationFailed;
        new.rounds = new.rounds.saturating_add(1);
        new
    }

    pub(super) fn end(&self, end: End) -> Self {
        let mut new = self.clone();
        new.status = match end {
            End::Completed => SagaStatus::Completed,
            End::Compensated => SagaStatus::Compensated,
        };
        new
    }

    /// The hook of the end failed.
    pub(super) fn end_failed(&self, end: End) -> Self {
        let mut new = self.clone();
        if end == End::Compensated {
            new.status = SagaStatus::CompensationFailed;
        }
        new.rounds = new.rounds.saturating_add(1);
        new
    }

    fn with(&self, step: usize, change: impl FnOnce(&mut Mark)) -> Self {
        let mut new = self.clone();
        if let Some(mark) = new.marks.get_mut(step) {
            change(mark);
        }
        new
    }
}

#[cfg(test)]
mod tests;
