//! Every history of three steps that failures and crashes can make.

use std::collections::HashSet;

use super::*;

const KINDS: [FailureKind; 3] = [
    FailureKind::Refused,
    FailureKind::Technical,
    FailureKind::Unknown,
];

fn shape(pivot: Option<usize>, local: Option<usize>) -> Vec<Shape> {
    let one = |at| Shape {
        attempts: 2,
        undo_attempts: 2,
        pivot: pivot == Some(at),
        remote: local != Some(at),
    };
    (0..3).map(one).collect()
}

fn fresh() -> Progress {
    Progress {
        status: SagaStatus::Running,
        rounds: 0,
        marks: vec![Mark::default(); 3],
    }
}

/// What is really done, beside what the marks say: the call of each step.
type World = (Progress, [bool; 3]);

/// All that may follow: each ending of what is next, and a crash before it and after it.
fn followers(shape: &[Shape], (progress, done): &World) -> Vec<World> {
    let with = |progress: Progress, step: usize, is_done: bool| {
        let mut done = *done;
        if let Some(done) = done.get_mut(step) {
            *done = is_done;
        }
        (progress, done)
    };
    let was = |step: usize| done.get(step).copied().unwrap_or(false);
    let remote = |step: usize| shape.get(step).is_some_and(|shape| shape.remote);
    let mut all = Vec::new();
    match progress.next(shape) {
        Next::Do(step) => {
            let in_doubt = progress.in_doubt(step);
            let begun = progress.begin(step);
            // A crash after the mark, and after the call.
            all.push(with(begun.clone(), step, was(step)));
            all.push(with(begun.clone(), step, remote(step)));
            all.push(with(begun.succeed(step), step, true));
            for kind in KINDS {
                let call = begun.fail(shape, step, (kind, Stage::Call), in_doubt);
                all.push(with(call.clone(), step, was(step)));
                if kind == FailureKind::Unknown && remote(step) {
                    all.push(with(call, step, true));
                }
                let record = begun.fail(shape, step, (kind, Stage::Record), in_doubt);
                all.push(with(record, step, remote(step)));
            }
        }
        Next::GiveUp(step) => all.push(with(progress.give_up(shape, step), step, was(step))),
        Next::Undo(step) => {
            let begun = progress.begin_undo(step);
            all.push(with(begun.clone(), step, was(step)));
            all.push(with(begun.clone(), step, false));
            all.push(with(begun.undo_failed(shape, step), step, was(step)));
            all.push(with(begun.undone(step), step, false));
        }
        Next::Stuck(step) => all.push(with(progress.undo_failed(shape, step), step, was(step))),
        Next::End(end) => {
            all.push((progress.end(end), *done));
            all.push((progress.end_failed(end), *done));
        }
        Next::Nothing => {}
        Next::Illegal(step) => panic!("step {step} of {progress:?}"),
    }
    // Beyond these the counts change nothing, and without a bound there would be no end.
    for (progress, _) in &mut all {
        progress.rounds = progress.rounds.min(2);
        for mark in &mut progress.marks {
            mark.attempts = mark.attempts.min(4);
            mark.undo_attempts = mark.undo_attempts.min(4);
        }
    }
    all
}

/// Every world that can be reached.
fn explore(shape: &[Shape]) -> HashSet<String> {
    let mut seen = HashSet::new();
    let mut open = vec![(fresh(), [false; 3])];
    let mut ends = HashSet::new();
    while let Some(world) = open.pop() {
        if !seen.insert(format!("{world:?}")) {
            continue;
        }
        let (progress, done) = &world;
        match progress.status {
            SagaStatus::Completed => assert_eq!(*done, [true; 3], "{progress:?}"),
            SagaStatus::Compensated => assert_eq!(*done, [false; 3], "{progress:?}"),
            SagaStatus::Running => {}
            SagaStatus::Compensating | SagaStatus::CompensationFailed => {
                assert!(!progress.past_pivot(shape), "{progress:?}");
                // In reverse: nothing is undone while something after it is not.
                let undone = |mark: &Mark| mark.status == StepStatus::Compensated;
                if let Some(first) = progress.marks.iter().position(undone) {
                    let mut later = done.iter().skip(first);
                    assert!(!later.any(|done| *done), "{progress:?}");
                }
            }
            SagaStatus::Failed => panic!("no engine sets it: {progress:?}"),
        }
        let next = followers(shape, &world);
        if next.is_empty() {
            ends.insert(progress.status.to_string());
        }
        open.extend(next);
    }
    assert!(seen.len() > 100);
    ends
}

#[test]
fn every_history_ends_all_done_or_all_undone() {
    for local in [None, Some(0), Some(1), Some(2)] {
        let ends = explore(&shape(None, local));
        assert_eq!(ends.len(), 2, "{ends:?}");
    }
}

#[test]
fn after_the_pivot_every_history_ends_done() {
    for pivot in 0..3 {
        assert_eq!(explore(&shape(Some(pivot), None)).len(), 2);
        let mut past = fresh();
        for step in 0..=pivot {
            past = past.begin(step).succeed(step);
        }
        for step in pivot + 1..3 {
            let shape = shape(Some(pivot), None);
            for kind in KINDS {
                let failed = past
                    .begin(step)
                    .fail(&shape, step, (kind, Stage::Call), false);
                assert_eq!(failed.status, SagaStatus::Running);
                assert_eq!(failed.begin(step).begin(step).next(&shape), Next::Do(step));
            }
            past = past.begin(step).succeed(step);
        }
    }
}

#[test]
fn an_undo_cut_short_too_often_is_stuck() {
    let shape = shape(None, None);
    let refused = fresh().begin(0).succeed(0).begin(1).fail(
        &shape,
        1,
        (FailureKind::Refused, Stage::Call),
        false,
    );
    let cut = refused.begin_undo(0);
    assert_eq!(cut.next(&shape), Next::Undo(0));
    let cut = cut.begin_undo(0);
    assert_eq!(cut.next(&shape), Next::Stuck(0));
    let stuck = cut.undo_failed(&shape, 0);
    assert_eq!(
        (stuck.status, stuck.rounds),
        (SagaStatus::CompensationFailed, 1)
    );
    assert_eq!(stuck.next(&shape), Next::Undo(0));
    // Once stuck, each attempt counts as one round.
    let again = stuck.begin_undo(0);
    assert_eq!(again.next(&shape), Next::Undo(0));
    assert_eq!(again.undo_failed(&shape, 0).rounds, 2);
    let undone = again.undone(0);
    assert_eq!(
        (undone.status, undone.rounds),
        (SagaStatus::Compensating, 0)
    );
    assert_eq!(undone.next(&shape), Next::End(End::Compensated));
}

#[test]
fn a_history_of_somebody_else_is_illegal() {
    let mut progress = fresh();
    for mark in &mut progress.marks {
        mark.status = StepStatus::Compensated;
    }
    assert_eq!(progress.next(&shape(None, None)), Next::Illegal(0));
}
