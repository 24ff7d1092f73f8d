//! TLS to both servers: it is used where it is asked for, and nothing goes out in the clear where it fails.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use reqwest::Url;
use tests::both::{arrives, insert, session};
use tests::inbox::Inbox;
use tests::relay::RelayCommand;
use tests::scene::Scene;
use tests::until::{Seen, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

tests::on_servers! {
    mysql Mysql: events_flow_over_tls, untrusted_servers_are_refused, no_tls_means_no_connection;
    mariadb Mariadb: events_flow_over_tls, untrusted_servers_are_refused, no_tls_means_no_connection;
}

fn file(name: &str) -> Result<PathBuf> {
    let folder = std::env::var_os("TLS_DIR")
        .context("TLS_DIR is not set: eval \"$(scripts/services env)\"")?;
    Ok(PathBuf::from(folder).join(name))
}

fn amqps() -> Result<String> {
    std::env::var("AMQPS_URL").context("AMQPS_URL is not set: eval \"$(scripts/services env)\"")
}

/// Everything that TLS takes, on both sides.
fn secured(scene: &Scene, ca: &str) -> Result<RelayCommand> {
    let mut command = scene.relay().with("RELAY_AMQP_URL", amqps()?);
    for server in ["MYSQL", "AMQP"] {
        for (setting, name) in [
            ("CA", ca),
            ("CLIENT_CERT", "client.pem"),
            ("CLIENT_KEY", "client-key.pem"),
        ] {
            command = command.with(
                &format!("RELAY_{server}_{setting}_FILE"),
                file(name)?.display(),
            );
        }
    }
    Ok(command)
}

/// Waits until the relay, which does not get ready, says all of that.
async fn says(command: &RelayCommand, words: &[&str]) -> Result<()> {
    let mut relay = command.spawn()?;
    until(&format!("the relay to say {words:?}"), async || {
        let log = relay.log();
        let said = words.iter().all(|word| log.contains(word));
        Ok(Seen::when(said, || log))
    })
    .await?;
    // It may have ended over it already.
    if relay.ended()?.is_none() {
        relay.kill9().await?;
    }
    Ok(())
}

/// The account must show a certificate: so the session is encrypted, and the client's certificate was taken.
async fn events_flow_over_tls(scene: &mut Scene) -> Result<()> {
    let require = format!("ALTER USER {} REQUIRE X509", scene.account().name());
    scene.database.execute(&require).await?;
    says(&scene.relay(), &["Access denied"]).await?;
    let queue = scene.broker.queue("#").await?;
    let mut relay = secured(scene, "ca.pem")?.start().await?;
    session(scene, &[&insert(&["secured"])]).await?;
    let mut inbox = Inbox::new();
    arrives(scene, &queue, &mut inbox, "secured").await?;
    relay.publishes_all(&scene.database).await?;
    relay.stop().await
}

/// A certificate of a CA that is not trusted, for either server.
async fn untrusted_servers_are_refused(scene: &mut Scene) -> Result<()> {
    let command = secured(scene, "ca.pem")?;
    let other = file("other-ca.pem")?;
    for setting in ["MYSQL_CA_FILE", "AMQP_CA_FILE"] {
        let variable = format!("RELAY_{setting}");
        let command = command.clone().with(&variable, other.display());
        says(&command, &["certificate", &variable]).await?;
    }
    Ok(())
}

/// Servers without TLS: the relay gives up before it has sent a user or a password.
async fn no_tls_means_no_connection(scene: &mut Scene) -> Result<()> {
    let plain = scene
        .broker
        .url()
        .to_string()
        .replace("amqp://", "amqps://");
    let command = secured(scene, "ca.pem")?;
    says(&command.clone().with("RELAY_AMQP_URL", plain), &["TLS"]).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut url: Url = scene.account().url().clone();
    ensure!(url.set_port(Some(listener.local_addr()?.port())).is_ok());
    let sent = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        stream.write_all(&greeting()).await?;
        let mut sent = Vec::new();
        stream.read_to_end(&mut sent).await?;
        anyhow::Ok(sent)
    });
    says(&command.with("RELAY_MYSQL_URL", url), &["offers no TLS"]).await?;
    let sent = sent.await??;
    ensure!(
        sent.is_empty(),
        "{} bytes were sent in the clear",
        sent.len()
    );
    Ok(())
}

/// What a server says first (protocol version 10), with every capability but TLS.
fn greeting() -> Vec<u8> {
    let mut packet = vec![10];
    packet.extend(b"8.4.0\0");
    packet.extend(1_u32.to_le_bytes());
    packet.extend(b"saltsalt\0");
    let capabilities: u32 = 0x00ff_f7ff & !0x0800;
    let [a, b, c, d] = capabilities.to_le_bytes();
    packet.extend([a, b, 45, 2, 0, c, d, 21]);
    packet.extend([0; 10]);
    packet.extend(b"saltsaltsalt\0");
    packet.extend(b"caching_sha2_password\0");
    let length = u32::try_from(packet.len())
        .unwrap_or(u32::MAX)
        .to_le_bytes();
    let mut bytes: Vec<u8> = length.iter().take(3).copied().collect();
    bytes.push(0);
    bytes.extend(packet);
    bytes
}
