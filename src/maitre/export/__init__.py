"""What is deployed beside a server: alert rules, recording rules and a dashboard for its metrics."""
