//! An exchange and queues of its own on RabbitMQ.

use anyhow::{Context as _, Result, ensure};
use futures_util::StreamExt as _;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
    QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, Consumer, ExchangeKind};
use reqwest::Url;

use crate::inbox::{Inbox, Message};
use crate::until::{Seen, until};

/// Kind of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// Replicated and always durable; what RabbitMQ recommends for data that must not be lost.
    Quorum,
    /// The traditional kind, durable.
    Classic,
}

impl QueueKind {
    /// The value of `x-queue-type`.
    pub fn name(self) -> &'static str {
        match self {
            QueueKind::Quorum => "quorum",
            QueueKind::Classic => "classic",
        }
    }
}

/// A connection to RabbitMQ with an exchange of its own, all to be [deleted](Broker::delete) at the end.
#[derive(Debug)]
pub struct Broker {
    url: Url,
    exchange: String,
    connection: Connection,
    channel: Channel,
    queues: Vec<String>,
}

impl Broker {
    /// Connects and declares the exchange as the relay would: durable, topic.
    ///
    /// # Errors
    /// The broker is not there, or refuses.
    pub async fn connect(url: Url, exchange: String) -> Result<Self> {
        let (connection, channel) = open(&url).await?;
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        channel
            .exchange_declare(
                exchange.as_str().into(),
                ExchangeKind::Topic,
                durable,
                FieldTable::default(),
            )
            .await?;
        Ok(Self {
            url,
            exchange,
            connection,
            channel,
            queues: Vec::new(),
        })
    }

    /// Connects anew, after the broker was restarted.
    ///
    /// # Errors
    /// The deadline passed.
    pub async fn reconnect(&mut self) -> Result<()> {
        (self.connection, self.channel) = until("the broker to accept a connection", async || {
            Ok(match open(&self.url).await {
                Ok(opened) => Seen::Yes(opened),
                Err(error) => Seen::NotYet(format!("{error:#}")),
            })
        })
        .await?;
        Ok(())
    }

    /// Its address, password and all.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The exchange.
    pub fn exchange(&self) -> &str {
        &self.exchange
    }

    /// A new quorum queue, bound to the exchange with that pattern.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn queue(&mut self, pattern: &str) -> Result<String> {
        self.queue_of(QueueKind::Quorum, pattern).await
    }

    /// A new queue of that kind, bound to the exchange with that pattern.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn queue_of(&mut self, kind: QueueKind, pattern: &str) -> Result<String> {
        let queue = format!("{}.{}", self.exchange, self.queues.len());
        let mut arguments = FieldTable::default();
        arguments.insert(
            "x-queue-type".into(),
            AMQPValue::LongString(kind.name().into()),
        );
        self.channel
            .queue_declare(
                queue.as_str().into(),
                QueueDeclareOptions::durable(),
                arguments,
            )
            .await?;
        self.channel
            .queue_bind(
                queue.as_str().into(),
                self.exchange.as_str().into(),
                pattern.into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await?;
        self.queues.push(queue.clone());
        Ok(queue)
    }

    /// Deletes that queue too at the end, whoever declares it.
    pub fn adopt(&mut self, queue: String) {
        self.queues.push(queue);
    }

    /// How many messages are ready in the queue, as the broker counts them.
    ///
    /// # Errors
    /// There is no such queue.
    pub async fn depth(&self, queue: &str) -> Result<u32> {
        let passive = QueueDeclareOptions::durable().passive();
        let state = self
            .channel
            .queue_declare(queue.into(), passive, FieldTable::default())
            .await?;
        Ok(state.message_count())
    }

    /// Throws away what is in the queue.
    ///
    /// # Errors
    /// There is no such queue.
    pub async fn purge(&self, queue: &str) -> Result<()> {
        self.channel
            .queue_purge(queue.into(), QueuePurgeOptions::default())
            .await?;
        Ok(())
    }

    /// Moves all that is in the queue now into the inbox.
    ///
    /// # Errors
    /// The broker failed.
    pub async fn take_all(&self, queue: &str, inbox: &mut Inbox) -> Result<()> {
        self.take_many(queue, inbox).await?;
        // A get, unlike a count, is an operation of the queue: an empty answer means empty.
        let no_ack = BasicGetOptions { no_ack: true };
        while let Some(message) = self.channel.basic_get(queue.into(), no_ack).await? {
            inbox.push(Message::from(message.delivery));
        }
        Ok(())
    }

    /// Consumes as many as the broker counts, and what comes until the consumer is cancelled.
    async fn take_many(&self, queue: &str, inbox: &mut Inbox) -> Result<()> {
        let depth = usize::try_from(self.depth(queue).await?)?;
        if depth < 20 {
            return Ok(());
        }
        let mut consumer = self.consume(queue).await?;
        for _ in 0..depth {
            let delivery = delivered(consumer.next().await)?;
            inbox.push(Message::from(delivery));
        }
        self.channel
            .basic_cancel(consumer.tag(), BasicCancelOptions::default())
            .await?;
        while let Some(delivery) = consumer.next().await {
            inbox.push(Message::from(delivery?));
        }
        Ok(())
    }

    /// A consumer that takes messages for good as they come.
    ///
    /// # Errors
    /// There is no such queue.
    pub async fn consume(&self, queue: &str) -> Result<Consumer> {
        let no_ack = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let channel = &self.channel;
        Ok(channel
            .basic_consume(queue.into(), "".into(), no_ack, FieldTable::default())
            .await?)
    }

    /// Ends a consumer. To be done before its queue is deleted: RabbitMQ 4.3 otherwise ends the connection
    /// with an internal error (`{case_clause,{error,noproc}}` in `rabbit_channel:cancel_consumer/4`).
    ///
    /// # Errors
    /// The broker failed.
    pub async fn cancel(&self, consumer: &Consumer) -> Result<()> {
        Ok(self
            .channel
            .basic_cancel(consumer.tag(), BasicCancelOptions::default())
            .await?)
    }

    /// Takes from the queue until the inbox meets the condition.
    ///
    /// # Errors
    /// The deadline passed.
    pub async fn take_until(
        &self,
        queue: &str,
        inbox: &mut Inbox,
        what: &str,
        condition: impl Fn(&Inbox) -> bool,
    ) -> Result<()> {
        until(what, async || {
            self.take_all(queue, inbox).await?;
            Ok(Seen::when(condition(inbox), || {
                format!(
                    "{} messages, {} different",
                    inbox.messages().len(),
                    inbox.distinct()
                )
            }))
        })
        .await
    }

    /// Asserts that the queue is empty.
    ///
    /// # Errors
    /// It is not.
    pub async fn is_empty(&self, queue: &str) -> Result<()> {
        let mut rest = Inbox::new();
        self.take_all(queue, &mut rest).await?;
        let keys: Vec<&str> = rest.messages().iter().take(5).map(Message::key).collect();
        ensure!(
            keys.is_empty(),
            "{queue} should be empty and holds {keys:?}"
        );
        Ok(())
    }

    /// Deletes the queues and the exchange.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn delete(self) -> Result<()> {
        for queue in &self.queues {
            self.channel
                .queue_delete(queue.as_str().into(), QueueDeleteOptions::default())
                .await?;
        }
        let exchange = self.exchange.as_str().into();
        self.channel
            .exchange_delete(exchange, ExchangeDeleteOptions::default())
            .await?;
        self.connection.close(200, "done".into()).await?;
        Ok(())
    }
}

async fn open(url: &Url) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(url.as_str(), ConnectionProperties::default())
        .await
        .context("cannot connect to RabbitMQ: is it up?")?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

fn delivered(
    next: Option<lapin::Result<lapin::message::Delivery>>,
) -> Result<lapin::message::Delivery> {
    Ok(next.context("the broker ended the consumer")??)
}
