//! RabbitMQ.
