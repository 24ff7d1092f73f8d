//! A list of servers: the primary is lost or demoted, a replica takes its place, and the relay follows.

use anyhow::{Result, ensure};
use tests::database::Database;
use tests::inbox::Inbox;
use tests::on_private_servers;
use tests::private::PrivateServer;
use tests::proxy::Proxy;
use tests::relay::{RelayCommand, RelayProcess};
use tests::scene::Scene;
use tests::servers::Flavor;
use tests::until::{Seen, until};
use tests::writers::{Load, place_orders};

on_private_servers! {
    // The other server has the even numbers: an order lost with the primary does not share its id with a later one.
    mysql Mysql ["--auto-increment-increment=2", "--auto-increment-offset=1"] =>
        replica_takes_over_from_a_killed_primary,
        replica_that_lacks_transactions_takes_over,
        replica_behind_a_checkpoint_file_takes_over,
        demoted_primary_is_left;
}

const ORDERS: u64 = 150;

/// A read-only replica of that server.
async fn replica_of(primary: &PrivateServer) -> Result<PrivateServer> {
    let numbers = ["--auto-increment-increment=2", "--auto-increment-offset=2"];
    let replica = PrivateServer::start(Flavor::Mysql, &numbers).await?;
    let port = primary.port();
    replica
        .exec(&format!(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, SOURCE_USER = 'root', \
             SOURCE_PASSWORD = 'outbox', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
        ))
        .await?;
    replica.exec("SET GLOBAL super_read_only = ON").await?;
    replica.exec("START REPLICA").await?;
    Ok(replica)
}

async fn catches_up(replica: &PrivateServer, primary: &PrivateServer) -> Result<()> {
    let executed = "SELECT CAST(@@global.gtid_executed AS CHAR)";
    let goal = primary.first_column(executed).await?;
    let question = format!("SELECT CAST(GTID_SUBSET('{goal}', @@global.gtid_executed) AS CHAR)");
    until("the replica to catch up", async || {
        let caught_up = replica.first_column(&question).await? == "1";
        Ok(Seen::when(caught_up, || format!("not {goal}")))
    })
    .await
}

async fn promote(replica: &PrivateServer) -> Result<()> {
    for statement in [
        "STOP REPLICA",
        "RESET REPLICA ALL",
        "SET GLOBAL super_read_only = OFF",
        "SET GLOBAL read_only = OFF",
    ] {
        replica.exec(statement).await?;
    }
    Ok(())
}

/// A relay that is told the replica's address first.
fn relay(scene: &Scene, replica: &PrivateServer, primary: &PrivateServer) -> RelayCommand {
    let list = PrivateServer::list(&[replica, primary], scene.account().url());
    scene
        .relay()
        .with("RELAY_MYSQL_URL", list)
        .with("RELAY_CHECKPOINT_INTERVAL", "50ms")
}

/// The scene's database on the other server.
fn database_on(scene: &Scene, server: &PrivateServer) -> Result<Database> {
    Database::open(
        Flavor::Mysql,
        server.url()?,
        scene.database.name().to_owned(),
    )
}

/// The primary dies with events unpublished that the replica has.
async fn replica_takes_over_from_a_killed_primary(
    scene: &mut Scene,
    primary: &mut PrivateServer,
) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let replica = replica_of(primary).await?;
    let proxy = Proxy::start(scene.broker.url()).await?;
    let url = proxy.address_for(scene.broker.url())?;
    let mut relay = relay(scene, &replica, primary)
        .with("RELAY_AMQP_URL", url)
        .start()
        .await?;
    let mut ledger = place_orders(&scene.database, Load::orders(ORDERS)).await?;
    relay.publishes_all(&scene.database).await?;
    proxy.refuse();
    ledger.extend(place_orders(&scene.database, Load::orders(ORDERS)).await?);
    catches_up(&replica, primary).await?;
    primary.kill().await?;

    until("readyz to name both servers", async || {
        let reason = relay.unready().await?;
        let told = [replica.port(), primary.port()]
            .iter()
            .all(|port| reason.contains(&port.to_string()))
            && reason.contains("is read-only");
        Ok(Seen::when(told, || reason.clone()))
    })
    .await?;
    promote(&replica).await?;
    let database = database_on(scene, &replica)?;
    ledger.extend(place_orders(&database, Load::orders(ORDERS)).await?);
    proxy.resume();
    relay.publishes_all(&database).await?;
    ensure!(!relay.log().contains("outbox@"), "the password is logged");
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).at_least_once_in_order()
}

/// The primary dies with events that were published and never got to the replica.
async fn lags(
    scene: &mut Scene,
    primary: &mut PrivateServer,
    prepare: impl FnOnce(RelayCommand) -> RelayCommand,
    log: &str,
) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let replica = replica_of(primary).await?;
    let mut relay: RelayProcess = prepare(relay(scene, &replica, primary)).start().await?;
    let mut ledger = place_orders(&scene.database, Load::orders(ORDERS)).await?;
    relay.publishes_all(&scene.database).await?;
    catches_up(&replica, primary).await?;
    replica.exec("STOP REPLICA").await?;
    let before = relay.metrics().await?.get("relay_checkpoint_writes_total");
    ledger.extend(place_orders(&scene.database, Load::orders(ORDERS)).await?);
    relay.publishes_all(&scene.database).await?;
    relay
        .reaches("relay_checkpoint_writes_total", before + 1)
        .await?;
    primary.kill().await?;

    promote(&replica).await?;
    let database = database_on(scene, &replica)?;
    ledger.extend(place_orders(&database, Load::orders(ORDERS)).await?);
    relay.publishes_all(&database).await?;
    ensure!(relay.log().contains(log), "the log does not say {log:?}");
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    // What was lost with the primary had been published before: nothing is missing.
    ledger.verdict(&inbox).at_least_once_in_order()
}

/// The checkpoint goes back with the rows.
async fn replica_that_lacks_transactions_takes_over(
    scene: &mut Scene,
    primary: &mut PrivateServer,
) -> Result<()> {
    lags(
        scene,
        primary,
        |relay| relay,
        "resuming from the checkpoint",
    )
    .await
}

/// The checkpoint is ahead of the replica: the relay notices, and reads the unpublished rows.
async fn replica_behind_a_checkpoint_file_takes_over(
    scene: &mut Scene,
    primary: &mut PrivateServer,
) -> Result<()> {
    let file = scene.path("checkpoint");
    let prepare = |relay: RelayCommand| relay.with("RELAY_CHECKPOINT_FILE", file.display());
    lags(
        scene,
        primary,
        prepare,
        "it was reset, or is another server",
    )
    .await
}

/// Nobody dies: the primary becomes read-only, and the relay leaves it for the replica.
async fn demoted_primary_is_left(scene: &mut Scene, primary: &mut PrivateServer) -> Result<()> {
    let queue = scene.broker.queue("#").await?;
    let replica = replica_of(primary).await?;
    let mut relay = relay(scene, &replica, primary).start().await?;
    let mut ledger = place_orders(&scene.database, Load::orders(ORDERS)).await?;
    primary.exec("SET GLOBAL super_read_only = ON").await?;
    catches_up(&replica, primary).await?;
    promote(&replica).await?;
    let database = database_on(scene, &replica)?;
    ledger.extend(place_orders(&database, Load::orders(ORDERS)).await?);
    relay.publishes_all(&database).await?;
    relay.stop().await?;
    let mut inbox = Inbox::new();
    scene.broker.take_all(&queue, &mut inbox).await?;
    ledger.verdict(&inbox).at_least_once_in_order()
}
