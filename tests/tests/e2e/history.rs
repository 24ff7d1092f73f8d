//! What becomes of the binlog on a server that its owner resets, purges, restarts or reconfigures: every committed row
//! is published, in order, and rows that are marked are not published again.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use tests::database::NewEvent;
use tests::inbox::Inbox;
use tests::ledger::Ledger;
use tests::on_private_servers;
use tests::private::PrivateServer;
use tests::relay::{RelayCommand, RelayProcess};
use tests::scene::Scene;
use tests::servers::Flavor;
use tests::writers::{Load, Writers, place_orders};

on_private_servers! {
    mysql Mysql [] =>
        reset_while_down,
        purge_while_down,
        purge_while_running,
        new_server_uuid_while_down,
        new_server_uuid_while_running,
        purged_beyond_the_checkpoint,
        another_servers_gtids_purged,
        checksums_change_while_running;
    mysql_without_gtids Mysql ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"] =>
        purge_while_down,
        purge_while_running,
        restart_while_down,
        restart_while_running,
        rotate_while_running;
    mysql_without_checksums Mysql ["--binlog-checksum=NONE"] =>
        restart_while_down,
        rotate_while_running;
    mariadb Mariadb [] =>
        reset_while_down,
        purge_while_down,
        purge_while_running,
        restart_while_running,
        checksums_change_while_running;
    mariadb_without_checksums Mariadb ["--binlog-checksum=NONE"] =>
        restart_while_down,
        rotate_while_running;
}

/// Orders before the event, and in each half around it.
const ORDERS: u64 = 150;

/// A relay that has published, marked and checkpointed what was written so far.
struct Settled {
    command: RelayCommand,
    relay: RelayProcess,
    queue: String,
    ledger: Ledger,
    marked: HashSet<String>,
}

impl Settled {
    async fn start(scene: &mut Scene) -> Result<Self> {
        let queue = scene.broker.queue("#").await?;
        let command = scene.relay().with("RELAY_CHECKPOINT_INTERVAL", "50ms");
        let mut relay = command.start().await?;
        let ledger = place_orders(&scene.database, Load::orders(ORDERS)).await?;
        relay.publishes_all(&scene.database).await?;
        let mut settled = Self {
            marked: ledger
                .committed()
                .iter()
                .map(|event| event.key.clone())
                .collect(),
            command,
            relay,
            queue,
            ledger,
        };
        // The second checkpoint from here on was begun after everything before was marked.
        for key in ["settled:1", "settled:2"] {
            let written = "relay_checkpoint_writes_total";
            let before = settled.relay.metrics().await?.get(written);
            settled.insert(scene, key).await?;
            settled.relay.reaches(written, before + 1).await?;
        }
        Ok(settled)
    }

    async fn insert(&mut self, scene: &Scene, key: &str) -> Result<()> {
        let id = i64::try_from(self.ledger.len())? + 1_000_000;
        scene
            .database
            .insert(&[NewEvent::order(id, "Touched", key)])
            .await?;
        self.ledger.commit([tests::ledger::Committed {
            aggregate_id: id,
            event_type: "Touched".to_owned(),
            key: key.to_owned(),
        }]);
        Ok(())
    }

    async fn order(&mut self, scene: &Scene) -> Result<()> {
        self.ledger
            .extend(place_orders(&scene.database, Load::orders(ORDERS)).await?);
        Ok(())
    }

    /// Nothing lost, order kept, and no row twice that was marked before.
    async fn ends_well(mut self, scene: &Scene) -> Result<()> {
        self.relay.publishes_all(&scene.database).await?;
        self.relay.stop().await?;
        let mut inbox = Inbox::new();
        scene.broker.take_all(&self.queue, &mut inbox).await?;
        let verdict = self.ledger.verdict(&inbox);
        verdict.at_least_once_in_order()?;
        let mut seen = HashSet::new();
        let again = inbox
            .messages()
            .iter()
            .filter(|message| self.marked.contains(message.key()))
            .filter(|message| !seen.insert(message.key()))
            .count();
        ensure!(
            again == 0,
            "{again} of {} marked rows were published again",
            self.marked.len()
        );
        Ok(())
    }
}

/// Something happens between two runs of the relay, with writes on both sides of it.
async fn while_down(
    scene: &mut Scene,
    server: &mut PrivateServer,
    event: impl AsyncFnOnce(&mut PrivateServer) -> Result<()>,
) -> Result<()> {
    let mut settled = Settled::start(scene).await?;
    settled.relay.stop().await?;
    settled
        .ledger
        .extend(place_orders(&scene.database, Load::orders(ORDERS)).await?);
    event(server).await?;
    settled
        .ledger
        .extend(place_orders(&scene.database, Load::orders(ORDERS)).await?);
    settled.relay = settled.command.start().await?;
    settled.order(scene).await?;
    settled.ends_well(scene).await
}

/// Something happens under a running relay and under load.
async fn under_load(
    scene: &mut Scene,
    server: &mut PrivateServer,
    event: impl AsyncFnOnce(&mut PrivateServer) -> Result<()>,
) -> Result<()> {
    let mut settled = Settled::start(scene).await?;
    let load = Load {
        writers: 4,
        ..Load::endless()
    }
    .paced(50);
    let writers = Writers::start(&scene.database, load).await?;
    writers.commit_more(ORDERS).await?;
    event(server).await?;
    writers.commit_more(ORDERS).await?;
    settled.ledger.extend(writers.stop().await?);
    settled.ends_well(scene).await
}

/// Something happens under a running relay that no writer survives.
async fn while_running(
    scene: &mut Scene,
    server: &mut PrivateServer,
    event: impl AsyncFnOnce(&mut PrivateServer) -> Result<()>,
) -> Result<()> {
    let mut settled = Settled::start(scene).await?;
    settled.order(scene).await?;
    event(server).await?;
    settled.order(scene).await?;
    settled.ends_well(scene).await
}

async fn reset(server: &mut PrivateServer) -> Result<()> {
    let statement = match server.flavor() {
        Flavor::Mysql => "RESET BINARY LOGS AND GTIDS",
        Flavor::Mariadb => "RESET MASTER",
    };
    server.exec(statement).await
}

async fn reset_while_down(scene: &mut Scene, server: &mut PrivateServer) -> Result<()> {
    while_down(scene, server, reset).await
}

/// Leaves the newest file alone.
async fn purge(server: &mut PrivateServer) -> Result<()> {
    server.exec("FLUSH BINARY LOGS").await?;
    let statement = match server.flavor() {
        Flavor::Mysql => "SHOW BINARY LOG STATUS",
        Flavor::Mariadb => "SHOW MASTER STATUS",
    };
    let newest = server.first_column(statement).await?;
    server
        .exec(&format!("PURGE BINARY LOGS TO '{newest}'"))
        .await
}

async fn purge_while_down(scene: &mut Scene, server: &mut PrivateServer) -> Result<()> {
    while_down(scene, server, purge).await
}

async fn purge_while_running(scene: &mut Scene, server: &mut PrivateServer) -> Result<()> {
    under_load(scene, server, purge).await
}

async fn new_uuid(server: &mut PrivateServer) -> Result<()> {
    let ask = "SELECT CAST(@@server_uuid AS CHAR)";
    let before = server.first_column(ask).await?;
    server.stop().await?;
    std::fs::remove_file(server.data().join("auto.cnf")).context("no auto.cnf")?;
    server.resume().await?;
    ensure!(
        server.first_column(ask).await? != before,
        "the uuid is still the same"
    );
    Ok(())
}

async fn new_server_uuid_while_down(scene: &mut Scene, server: &mut PrivateServer) -> Result<()> {
    while_down(scene, server, new_uuid).await
}

async fn new_server_uuid_while_running(
    scene: &mut Scene,
    server: &mut PrivateServer,
) -> Result<()> {
    while_running(scene, server, new_uuid).await
}

/// What a server looks like that was set up anew from a dump.
async fn purged_beyond_the_checkpoint(scene: &mut Scene, server: &mut PrivateServer) -> Result<()> {
    while_down(scene, server, async |server| {
        let uuid = server
            .first_column("SELECT CAST(@@server_uuid AS CHAR)")
            .await?;
        reset(server).await?;
        server
            .exec(&format!("SET GLOBAL gtid_purged = '{uuid}:1-1000000'"))
            .await
    })
    .await
}

async fn another_servers_gtids_purged(scene: &mut Scene, server: &mut PrivateServer) -> Result<()> {
    while_down(scene, server, async |server| {
        server
            .exec("SET GLOBAL gtid_purged = '+3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5'")
            .await
    })
    .await
}

async fn checksums_change_while_running(
    scene: &mut Scene,
    server: &mut PrivateServer,
) -> Result<()> {
    under_load(scene, server, async |server| {
        for algorithm in ["NONE", "CRC32", "NONE"] {
            server
                .exec(&format!("SET GLOBAL binlog_checksum = {algorithm}"))
                .await?;
        }
        Ok(())
    })
    .await
}

async fn restart_while_down(scene: &mut Scene, server: &mut PrivateServer) -> Result<()> {
    while_down(scene, server, PrivateServer::restart).await
}

async fn restart_while_running(scene: &mut Scene, server: &mut PrivateServer) -> Result<()> {
    while_running(scene, server, PrivateServer::restart).await
}

async fn rotate_while_running(scene: &mut Scene, server: &mut PrivateServer) -> Result<()> {
    under_load(scene, server, async |server| {
        for _ in 0..3 {
            server.exec("FLUSH BINARY LOGS").await?;
        }
        Ok(())
    })
    .await
}
