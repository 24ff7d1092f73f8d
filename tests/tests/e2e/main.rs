//! The relay against real servers, each test on MySQL and on MariaDB.
//!
//! `cargo test -p tests --test e2e mysql::` runs one half, `… e2e values_arrive` one test on both.

mod admin;
mod big;
mod breadth;
mod bulk;
mod check;
mod contract;
mod crash;
mod dlq;
mod exchange;
mod gap;
mod garbage;
mod history;
mod leader;
mod mapping;
mod metadata;
mod misuse;
mod outage;
mod poison;
mod poll;
mod position;
mod replica;
mod resume;
mod retention;
mod rival;
mod schema;
mod shutdown;
mod snapshot;
mod stream;
mod sweep;
mod tls;
mod unroutable;
mod values;

/// The tests, as functions of a scene, on one server.
macro_rules! on {
    ($flavor:expr, $($module:ident::$name:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() -> Result<(), tests::scene::Failure> {
                tests::scene::run($flavor, crate::$module::$name).await
            }
        )*

        /// The only user of the old broker, which it stops and starts.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn broker_restart_is_survived() -> Result<(), tests::scene::Failure> {
            crate::outage::broker_restart_is_survived($flavor).await
        }
    };
}

/// The one list of tests, for both servers.
macro_rules! on_both {
    ($($tests:tt)*) => {
        mod mysql {
            on!(tests::servers::Flavor::Mysql, $($tests)*);
        }
        mod mariadb {
            on!(tests::servers::Flavor::Mariadb, $($tests)*);
        }
    };
}

on_both!(
    stream::orders_arrive_in_commit_order_per_aggregate,
    crash::kill_9_ten_times_loses_nothing,
    outage::broker_outage_is_survived,
    outage::binlog_outage_is_survived,
    unroutable::unroutable_event_is_not_marked_published,
    unroutable::unroutable_events_become_dead_letters,
    shutdown::sigterm_under_load_republishes_nothing,
    values::values_arrive_as_select_shows_them,
    snapshot::rows_already_there_are_published_once,
    snapshot::snapshots_under_load_publish_each_row_once,
    resume::relay_resumes_from_its_checkpoint,
    leader::standby_takes_over_from_a_killed_leader,
    leader::leader_that_stops_hands_over,
    leader::paused_leader_publishes_nothing_more,
    misuse::bad_settings_are_named_with_exit_code_2,
    misuse::unreachable_servers_are_named,
    misuse::broker_that_is_down_at_start_is_waited_for,
);
