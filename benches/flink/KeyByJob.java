import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.accumulators.ListAccumulator;
import org.apache.flink.api.common.accumulators.LongCounter;
import org.apache.flink.api.common.accumulators.LongMaximum;
import org.apache.flink.api.common.accumulators.LongMinimum;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/**
 * Records (long, long, double, "user-N") keyed by their first field from one task manager to another, again and again.
 *
 * Argument: host:port of the cluster's REST endpoint.  Standard input, one order a line; standard output, one line each:
 *   throughput N           -> "seconds records sum": from the first record made to the last record counted
 *   latency N PAUSE_US     -> "p50_us p99_us": one record every PAUSE_US, buffer timeout 0, from made to received
 *
 * Object reuse is on, as Flink's documentation advises where speed counts.  The client and the JVMs stay, so they are warm.
 */
public class KeyByJob {
  /** NumberSequenceSource with a reader that does nothing but count (and wait, when it is paced). */
  public static class Source extends NumberSequenceSource {
    final long pause;
    Source(long n, long pause) { super(0, n - 1); this.pause = pause; }

    @Override public SourceReader<Long, NumberSequenceSplit> createReader(SourceReaderContext context) {
      return new Reader(context, pause);
    }

    static final class Reader implements SourceReader<Long, NumberSequenceSplit> {
      final SourceReaderContext context;
      final long pause;
      final ArrayDeque<NumberSequenceSplit> splits = new ArrayDeque<>();
      CompletableFuture<Void> available = new CompletableFuture<>();
      long next, end = -1, due;
      boolean noMore;

      Reader(SourceReaderContext context, long pause) { this.context = context; this.pause = pause; }
      @Override public void start() { context.sendSplitRequest(); }
      @Override public InputStatus pollNext(ReaderOutput<Long> out) {
        if (next > end) {
          NumberSequenceSplit split = splits.poll();
          if (split == null) {
            if (noMore) return InputStatus.END_OF_INPUT;
            if (available.isDone()) available = new CompletableFuture<>();
            return InputStatus.NOTHING_AVAILABLE;
          }
          next = split.from();
          end = split.to();
          due = System.nanoTime() + pause;
        }
        if (pause > 0) {
          for (long left; (left = due - System.nanoTime()) > 0;) LockSupport.parkNanos(left);
          due = Math.max(due, System.nanoTime() - 10 * pause) + pause;
        }
        out.collect(next++);
        if (next > end) context.sendSplitRequest();
        return InputStatus.MORE_AVAILABLE;
      }
      @Override public List<NumberSequenceSplit> snapshotState(long id) { return new ArrayList<>(splits); }
      @Override public CompletableFuture<Void> isAvailable() {
        return next <= end || !splits.isEmpty() || noMore ? CompletableFuture.completedFuture(null) : available;
      }
      @Override public void addSplits(List<NumberSequenceSplit> more) { splits.addAll(more); available.complete(null); }
      @Override public void notifyNoMoreSplits() { noMore = true; available.complete(null); }
      @Override public void close() {}
    }
  }

  /** A number to a record, always the same object. */
  public static class Make extends RichMapFunction<Long, Tuple4<Long, Long, Double, String>> {
    final boolean stamp;
    transient Tuple4<Long, Long, Double, String> record;
    transient long first;
    Make(boolean stamp) { this.stamp = stamp; }
    @Override public void open(OpenContext context) { record = new Tuple4<>(); first = 0; }
    @Override public Tuple4<Long, Long, Double, String> map(Long id) {
      if (first == 0) first = System.currentTimeMillis();
      record.f0 = id;
      record.f2 = id * 0.25;
      record.f3 = "user-" + (id % 1000003L);
      record.f1 = stamp ? System.nanoTime() : 1_700_000_000_000L + id;
      return record;
    }
    @Override public void close() {
      if (first == 0) return;
      LongMinimum least = new LongMinimum();
      least.add(first);
      getRuntimeContext().addAccumulator("first", least);
    }
  }

  /** Counts the records and adds up their keys. */
  public static class Count extends RichMapFunction<Tuple4<Long, Long, Double, String>, Long> {
    transient long records, sum;
    transient boolean told;
    @Override public void open(OpenContext context) { records = 0; sum = 0; told = false; }
    @Override public Long map(Tuple4<Long, Long, Double, String> record) { records++; sum += record.f0; return sum; }
    @Override public void close() {
      if (told) return;
      told = true;
      LongMaximum last = new LongMaximum();
      last.add(System.currentTimeMillis());
      LongCounter count = new LongCounter(), total = new LongCounter();
      count.add(records);
      total.add(sum);
      getRuntimeContext().addAccumulator("last", last);
      getRuntimeContext().addAccumulator("records", count);
      getRuntimeContext().addAccumulator("sum", total);
    }
  }

  /** How long each record was on its way: both clocks are CLOCK_MONOTONIC of one machine. */
  public static class Age extends RichMapFunction<Tuple4<Long, Long, Double, String>, Long> {
    transient ArrayList<Long> ages;
    transient boolean told;
    @Override public void open(OpenContext context) { ages = new ArrayList<>(); told = false; }
    @Override public Long map(Tuple4<Long, Long, Double, String> record) {
      long age = System.nanoTime() - record.f1;
      ages.add(age);
      return age;
    }
    @Override public void close() {
      if (told) return;
      told = true;
      ListAccumulator<Long> all = new ListAccumulator<>();
      for (Long age : ages) all.add(age);
      getRuntimeContext().addAccumulator("ages", all);
    }
  }

  static StreamExecutionEnvironment environment(String host, int port, long timeoutMs) {
    StreamExecutionEnvironment env = StreamExecutionEnvironment.createRemoteEnvironment(host, port);
    env.setParallelism(1);
    env.getConfig().enableObjectReuse();
    env.setRuntimeMode(RuntimeExecutionMode.STREAMING);
    env.setBufferTimeout(timeoutMs);
    return env;
  }

  public static void main(String[] arguments) throws Exception {
    String host = arguments[0].split(":")[0];
    int port = Integer.parseInt(arguments[0].split(":")[1]);
    TypeInformation<Tuple4<Long, Long, Double, String>> type =
        Types.TUPLE(Types.LONG, Types.LONG, Types.DOUBLE, Types.STRING);
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = orders.readLine()) != null;) {
      String[] order = line.trim().split(" ");
      boolean latency = order[0].equals("latency");
      long n = Long.parseLong(order[1]);
      StreamExecutionEnvironment env = environment(host, port, latency ? 0 : 100);
      SingleOutputStreamOperator<Long> received =
          env.fromSource(new Source(n, latency ? Long.parseLong(order[2]) * 1000 : 0), WatermarkStrategy.noWatermarks(),
                  "numbers", Types.LONG)
              .map(new Make(latency)).returns(type)
              .keyBy(record -> record.f0, Types.LONG)
              .map(latency ? new Age() : new Count()).returns(Types.LONG)
              .slotSharingGroup("receiver"); // a slot of its own: the other task manager's
      received.sinkTo(new DiscardingSink<>());
      JobExecutionResult result = env.execute(order[0]);
      if (latency) {
        List<Long> ages = new ArrayList<>(result.<ArrayList<Long>>getAccumulatorResult("ages"));
        ages = ages.subList(ages.size() / 5, ages.size()); // the first fifth is not warm
        ages = new ArrayList<>(ages);
        Collections.sort(ages);
        System.out.printf(Locale.ROOT, "%.3f %.3f%n", ages.get(ages.size() / 2) / 1e3,
            ages.get(ages.size() * 99 / 100) / 1e3);
      } else {
        long first = result.<Long>getAccumulatorResult("first"), last = result.<Long>getAccumulatorResult("last");
        System.out.printf(Locale.ROOT, "%.3f %d %d%n", (last - first) / 1e3,
            result.<Long>getAccumulatorResult("records"), result.<Long>getAccumulatorResult("sum"));
      }
      System.out.flush();
    }
  }
}
