//! The sweeper's part of the loop: it may look at rows only once everything before is settled and written.

use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use super::Pipeline;
use crate::position::Position;
use crate::source::sweep::Sweep;

/// A sweeper that waits until everything up to a position is settled and written.
pub(super) struct SweepWait {
    upto: Position,
    done: oneshot::Sender<()>,
    /// Of the settlement that has to be written, once everything is settled.
    ticket: Option<u64>,
}

impl Pipeline {
    pub(super) fn swept(&mut self, sweep: Sweep) {
        match sweep {
            Sweep::Settle { upto, done } => {
                self.sweep = Some(SweepWait {
                    upto,
                    done,
                    ticket: None,
                });
            }
            Sweep::Publish(events) => {
                for event in events {
                    self.window.push_event(event);
                }
            }
        }
    }

    /// Tells the sweeper when everything up to its position is settled, and the marks of that are written.
    pub(super) fn answer_sweeper(&mut self) {
        let Some(wait) = &mut self.sweep else {
            return;
        };
        if wait.ticket.is_none() && self.window.watermark().reaches(&wait.upto) {
            wait.ticket = Some(self.settling.ticket());
        }
        let written = |ticket| self.settling.has_written(ticket);
        if wait.ticket.is_some_and(written)
            && let Some(wait) = self.sweep.take()
            && wait.done.send(()).is_err()
        {
            debug!("the sweeper has given up waiting");
        }
    }
}

/// The sweeper's next word; none ever where there is no sweeper.
pub(super) async fn next_sweep(sweeps: &mut Option<mpsc::Receiver<Sweep>>) -> Sweep {
    loop {
        match sweeps {
            Some(open) => match open.recv().await {
                Some(sweep) => return sweep,
                None => *sweeps = None,
            },
            None => std::future::pending().await,
        }
    }
}
