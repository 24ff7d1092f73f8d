//! One connection to the broker, from its topology to its end.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions,
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, Consumer, ExchangeKind};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::batch::{Recorded, Recorder};
use crate::amqp::{ANSWER, AmqpError, bounded, connect};
use crate::cli::{BrokerSettings, QueueType};

/// Most messages of one transaction: a commit costs as much as some dozens of rows.
const BATCH_MAX: usize = 100;
/// From this many bytes of bodies on, no message is added to a transaction.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Deliveries of one message until a quorum queue drops it; RabbitMQ 4 would drop it after 20, RabbitMQ 3 never. Here what
/// can't be read goes to `dead_letter_events` the first time; whatever else comes back is to come back.
const DELIVERY_LIMIT: i32 = 1_000_000;
/// Longest farewell.
const CLOSE: Duration = Duration::from_secs(5);
/// What this app consumes: every event of an order.
const BINDING: &str = "order.#";

/// An open consumer.
pub(super) struct Session {
    connection: Connection,
    channel: Channel,
    consumer: Consumer,
    queue: String,
}

impl Session {
    /// Connects, declares what is missing, and consumes.
    pub(super) async fn open(settings: &BrokerSettings) -> Result<Self, AmqpError> {
        let BrokerSettings {
            exchange,
            queue,
            queue_type,
            prefetch,
            ..
        } = settings;
        let connection = connect(&settings.url, format!("app worker of {queue}")).await?;
        let call = connection.create_channel();
        let channel = bounded("open a channel", ANSWER, call).await?;
        let options = ExchangeDeclareOptions {
            durable: true,
            ..Default::default()
        };
        let name = exchange.as_str();
        let call = channel.exchange_declare(
            name.into(),
            ExchangeKind::Topic,
            options,
            Default::default(),
        );
        bounded(format!("declare exchange {exchange}"), ANSWER, call).await?;
        let options = QueueDeclareOptions {
            durable: true,
            ..Default::default()
        };
        let call = channel.queue_declare(queue.as_str().into(), options, arguments(*queue_type));
        bounded(format!("declare queue {queue}"), ANSWER, call).await?;
        let options = QueueBindOptions::default();
        let call = channel.queue_bind(
            queue.as_str().into(),
            name.into(),
            BINDING.into(),
            options,
            Default::default(),
        );
        bounded(
            format!("bind queue {queue} to exchange {exchange}"),
            ANSWER,
            call,
        )
        .await?;
        let call = channel.basic_qos(*prefetch, BasicQosOptions::default());
        bounded("set the prefetch", ANSWER, call).await?;
        let options = BasicConsumeOptions::default();
        // The broker picks the consumer's tag.
        let call = channel.basic_consume(
            queue.as_str().into(),
            "".into(),
            options,
            Default::default(),
        );
        let consumer = bounded(format!("consume queue {queue}"), ANSWER, call).await?;
        Ok(Self {
            connection,
            channel,
            consumer,
            queue: queue.clone(),
        })
    }

    /// Records and acknowledges messages until `stop`.
    ///
    /// The batch in hand is finished; what the broker has delivered beyond it goes back to the queue when the connection
    /// closes.
    pub(super) async fn consume(
        mut self,
        recorder: &Recorder,
        stop: &CancellationToken,
    ) -> Result<(), AmqpError> {
        loop {
            let first = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                next = self.consumer.next() => self.delivered(next)?,
            };
            let batch = self.gather(first)?;
            let Some(last) = batch.last().map(|delivery| delivery.delivery_tag) else {
                continue;
            };
            match recorder.record(batch, stop).await {
                Recorded::Committed => {}
                Recorded::Stopped => break,
                Recorded::Refused => {
                    return Err(AmqpError::Unrecorded {
                        queue: self.queue.clone(),
                    });
                }
            }
            // Batches follow one another, so nothing up to `last` is open.
            let call = self
                .channel
                .basic_ack(last, BasicAckOptions { multiple: true });
            bounded("acknowledge messages", ANSWER, call).await?;
        }
        self.close().await;
        Ok(())
    }

    /// The first message, and what else is here already.
    fn gather(&mut self, first: Delivery) -> Result<Vec<Delivery>, AmqpError> {
        let mut bytes = first.data.len();
        let mut batch = vec![first];
        while batch.len() < BATCH_MAX && bytes < BATCH_BYTES {
            match self.consumer.next().now_or_never() {
                Some(next) => {
                    let delivery = self.delivered(next)?;
                    bytes += delivery.data.len();
                    batch.push(delivery);
                }
                None => break,
            }
        }
        Ok(batch)
    }

    fn delivered(&self, next: Option<lapin::Result<Delivery>>) -> Result<Delivery, AmqpError> {
        match next {
            Some(Ok(delivery)) => Ok(delivery),
            Some(Err(source)) => Err(AmqpError::Failed {
                doing: format!("consume queue {}", self.queue),
                source,
            }),
            None => Err(AmqpError::Cancelled {
                queue: self.queue.clone(),
            }),
        }
    }

    async fn close(self) {
        let call = self
            .channel
            .basic_cancel(self.consumer.tag(), BasicCancelOptions::default());
        if let Err(error) = bounded("cancel the consumer", CLOSE, call).await {
            debug!(%error, "farewell failed");
        }
        // 200 is reply-success: AMQP 0-9-1, section 1.8.
        let call = self.connection.close(200, "stopping".into());
        if let Err(error) = bounded("close the connection", CLOSE, call).await {
            warn!(%error, "acknowledgements may be lost, and their messages delivered again");
        }
    }
}

fn arguments(queue_type: QueueType) -> FieldTable {
    let mut arguments = FieldTable::default();
    let name = match queue_type {
        QueueType::Quorum => {
            let limit = AMQPValue::LongInt(DELIVERY_LIMIT);
            arguments.insert("x-delivery-limit".into(), limit);
            "quorum"
        }
        QueueType::Classic => "classic",
    };
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(name.into()));
    arguments
}
