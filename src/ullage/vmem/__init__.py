"""Virtual memory: reserve addresses, put memory behind them, take it away again."""
