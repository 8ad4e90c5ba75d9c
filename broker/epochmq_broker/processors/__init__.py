"""What a broker answers, by family of requests: each class offers its `handlers`."""
