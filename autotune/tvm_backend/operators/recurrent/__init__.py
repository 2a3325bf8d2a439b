"""LSTM, GRU and RNN: their kernel with the loop over steps."""
