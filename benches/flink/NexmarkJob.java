import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.accumulators.LongCounter;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingProcessingTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * Nexmark's queries by Flink's DataStream API, over the events of nexmark/events.py, made here in the same way.
 *
 * Argument: a folder for checkpoints.  Standard input: "QUERY EVENTS RATE SEED", of whole epochs; standard output, for
 * each: "SECONDS RESULTS".  One task for each stage, state on the heap, a checkpoint each second, objects reused.
 */
public class NexmarkJob {
  static final int PEOPLE = 1, AUCTIONS = 3, BIDS = 46, EPOCH = 50;
  static final int FIRST_ID = 1000, FIRST_CATEGORY = 10, CATEGORIES = 5, HOT = 100;
  static final int HOT_AUCTIONS = 2, HOT_SELLERS = 4, HOT_BIDDERS = 4, ACTIVE_PEOPLE = 1000, OPEN_AUCTIONS = 100, LEAD = 10;
  static final long BASE_MS = 1_436_918_400_000L;
  static final String[] STATES = {"AZ", "CA", "ID", "OR", "WA", "WY"};
  static final String[] CITIES =
      "Phoenix,Los Angeles,San Francisco,Boise,Portland,Bend,Redmond,Seattle,Kent,Cheyenne".split(",");
  static final String[] FIRST_NAMES = "Peter Paul Luke John Saul Vicky Kate Julie Sarah Deiter Walter".split(" ");
  static final String[] LAST_NAMES = "Shultz Abrams Spencer White Bartels Walton Smith Jones Noris".split(" ");
  static final String[] EXTRAS = new String[40];
  static {
    for (int n = 0; n < EXTRAS.length; n++) {
      StringBuilder text = new StringBuilder();
      for (int i = 0; i < 48 + n; i++) text.append((char) (97 + (7 * n + 13 * i) % 26));
      EXTRAS[n] = text.toString();
    }
  }

  /** person, name, city, state, joined */
  public static class Person extends Tuple5<Long, String, String, String, Long> {}
  /** auction, seller, category, opened, expires */
  public static class Auction extends Tuple5<Long, Long, Long, Long, Long> {}
  /** auction, bidder, price, placed, extra */
  public static class Bid extends Tuple5<Long, Long, Long, Long, String> {}

  /** Makes the events of one kind: of the k-th its number among all, then the event. */
  abstract static class Events<T> extends RichMapFunction<Long, T> {
    final int place, each;
    final long rate, seed;
    Events(int place, int each, long rate, long seed) {
      this.place = place;
      this.each = each;
      this.rate = rate;
      this.seed = seed;
    }
    long number(long k) { return k / each * EPOCH + place + k % each; }
    long ms(long n) { return n * 1000 / rate; }
    long time(long n) { return BASE_MS + ms(n); }
    long bits(long n, int column) {
      long z = (n * 8 + column + (seed << 40)) * 0x9E3779B97F4A7C15L;
      z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
      z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
      return (z ^ (z >>> 31)) >>> 33;
    }
    long below(long n, int column, long end) { return bits(n, column) % end; }
    String word(long n, int column, String[] words) { return words[(int) below(n, column, words.length)]; }
    long activePerson(long n, int column) {
      long people = n / EPOCH + 1, active = Math.min(people, ACTIVE_PEOPLE);
      return people - active + below(n, column, active + LEAD);
    }
    @Override public T map(Long k) { return event(number(k)); }
    abstract T event(long n);
  }

  static class People extends Events<Person> {
    People(long rate, long seed) { super(0, PEOPLE, rate, seed); }
    @Override Person event(long n) {
      Person p = new Person();
      p.f0 = FIRST_ID + n / EPOCH;
      p.f1 = word(n, 0, FIRST_NAMES) + " " + word(n, 1, LAST_NAMES);
      p.f2 = word(n, 2, CITIES);
      p.f3 = word(n, 3, STATES);
      p.f4 = time(n);
      return p;
    }
  }

  static class Auctions extends Events<Auction> {
    Auctions(long rate, long seed) { super(PEOPLE, AUCTIONS, rate, seed); }
    @Override Auction event(long n) {
      Auction a = new Auction();
      long epoch = n / EPOCH, horizon = ms(n + 1 + OPEN_AUCTIONS * EPOCH / AUCTIONS) - ms(n);
      a.f0 = FIRST_ID + AUCTIONS * epoch + n % EPOCH - PEOPLE;
      a.f1 = FIRST_ID + (below(n, 0, HOT_SELLERS) > 0 ? epoch / HOT * HOT : activePerson(n, 1));
      a.f2 = FIRST_CATEGORY + below(n, 2, CATEGORIES);
      a.f3 = time(n);
      a.f4 = time(n) + 1 + below(n, 3, Math.max(2 * horizon, 1));
      return a;
    }
  }

  static class Bids extends Events<Bid> {
    Bids(long rate, long seed) { super(PEOPLE + AUCTIONS, BIDS, rate, seed); }
    @Override Bid event(long n) {
      Bid b = new Bid();
      long epoch = n / EPOCH, last = AUCTIONS * epoch + AUCTIONS - 1, oldest = Math.max(last - OPEN_AUCTIONS, 0);
      b.f0 = FIRST_ID + (below(n, 0, HOT_AUCTIONS) > 0 ? last / HOT * HOT : oldest + below(n, 1, last - oldest + 1 + LEAD));
      b.f1 = FIRST_ID + (below(n, 2, HOT_BIDDERS) > 0 ? epoch / HOT * HOT + 1 : activePerson(n, 3));
      b.f2 = (long) Math.rint(Math.pow(10, bits(n, 4) / 2147483648.0 * 6) * 100);
      b.f3 = time(n);
      b.f4 = word(n, 5, EXTRAS);
      return b;
    }
  }

  final StreamExecutionEnvironment env;
  final long epochs, rate, seed;
  NexmarkJob(StreamExecutionEnvironment env, long events, long rate, long seed) {
    this.env = env;
    this.epochs = events / EPOCH;
    this.rate = rate;
    this.seed = seed;
  }

  <T> DataStream<T> read(Events<T> events, Class<T> kind, TypeInformation<?>... fields) {
    WatermarkStrategy<Long> times = WatermarkStrategy.<Long>forMonotonousTimestamps()
        .withTimestampAssigner((k, before) -> events.time(events.number(k)));
    NumberSequenceSource numbers = new NumberSequenceSource(0, epochs * events.each - 1);
    @SuppressWarnings({"unchecked", "rawtypes"})
    TypeInformation<T> type = new org.apache.flink.api.java.typeutils.TupleTypeInfo(kind, fields);
    return env.fromSource(numbers, times, kind.getSimpleName()).map(events).returns(type);
  }
  DataStream<Person> people() {
    return read(new People(rate, seed), Person.class, Types.LONG, Types.STRING, Types.STRING, Types.STRING, Types.LONG);
  }
  DataStream<Auction> auctions() {
    return read(new Auctions(rate, seed), Auction.class, Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.LONG);
  }
  DataStream<Bid> bids() {
    return read(new Bids(rate, seed), Bid.class, Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.STRING);
  }
  /** Bids of which a query reads two columns: (key, time). */
  DataStream<Tuple2<Long, Long>> pairs(int key) {
    return bids().map(b -> Tuple2.of(b.<Long>getField(key), b.f3)).returns(Types.TUPLE(Types.LONG, Types.LONG));
  }

  static final TypeInformation<Tuple2<Long, Long>> LONGS = Types.TUPLE(Types.LONG, Types.LONG);

  static class Count<T> implements AggregateFunction<T, Long, Long> {
    @Override public Long createAccumulator() { return 0L; }
    @Override public Long add(T row, Long count) { return count + 1; }
    @Override public Long getResult(Long count) { return count; }
    @Override public Long merge(Long one, Long other) { return one + other; }
  }

  /** Gives the count of a window with its key and end. */
  static class WithWindow extends ProcessWindowFunction<Long, Tuple3<Long, Long, Long>, Long, TimeWindow> {
    @Override public void process(Long key, Context context, Iterable<Long> counts, Collector<Tuple3<Long, Long, Long>> out) {
      out.collect(Tuple3.of(key, counts.iterator().next(), context.window().getEnd()));
    }
  }
  static final TypeInformation<Tuple3<Long, Long, Long>> COUNTS = Types.TUPLE(Types.LONG, Types.LONG, Types.LONG);

  /** The rows with the greatest of a field. */
  static class Best<T extends org.apache.flink.api.java.tuple.Tuple> implements AggregateFunction<T, ArrayList<T>, ArrayList<T>> {
    final int field;
    Best(int field) { this.field = field; }
    @Override public ArrayList<T> createAccumulator() { return new ArrayList<>(); }
    @Override public ArrayList<T> add(T row, ArrayList<T> best) {
      int above = best.isEmpty() ? 0 : Long.compare(row.<Long>getField(field), best.get(0).<Long>getField(field));
      if (above > 0) best.clear();
      if (above >= 0) best.add(row);
      return best;
    }
    @Override public ArrayList<T> getResult(ArrayList<T> best) { return best; }
    @Override public ArrayList<T> merge(ArrayList<T> one, ArrayList<T> other) {
      for (T row : other) one = add(row, one);
      return one;
    }
  }

  /** A person waits for auctions, auctions for their person. */
  static class LocalItems extends KeyedCoProcessFunction<Long, Person, Auction, Tuple4<String, String, String, Long>> {
    transient ValueState<Person> person;
    transient ListState<Long> waiting;
    final TypeInformation<Person> type;
    LocalItems(TypeInformation<Person> type) { this.type = type; }
    @Override public void open(OpenContext context) {
      person = getRuntimeContext().getState(new ValueStateDescriptor<>("person", type));
      waiting = getRuntimeContext().getListState(new ListStateDescriptor<>("waiting", Types.LONG));
    }
    @Override public void processElement1(Person p, Context context, Collector<Tuple4<String, String, String, Long>> out)
        throws Exception {
      person.update(p);
      for (Long auction : waiting.get()) out.collect(Tuple4.of(p.f1, p.f2, p.f3, auction));
      waiting.clear();
    }
    @Override public void processElement2(Auction a, Context context, Collector<Tuple4<String, String, String, Long>> out)
        throws Exception {
      Person p = person.value();
      if (p == null) waiting.add(a.f0); else out.collect(Tuple4.of(p.f1, p.f2, p.f3, a.f0));
    }
  }

  /** The best price of an auction when it closes, with its field: the seller, or the category. */
  static class Winning extends KeyedCoProcessFunction<Long, Auction, Tuple3<Long, Long, Long>, Tuple2<Long, Long>> {
    final int field;
    transient ValueState<Tuple3<Long, Long, Long>> auction; // its field, opened, expires
    transient ValueState<Long> best;
    transient ListState<Tuple2<Long, Long>> early; // bids that came before their auction: price, placed
    Winning(int field) { this.field = field; }
    @Override public void open(OpenContext context) {
      auction = getRuntimeContext().getState(new ValueStateDescriptor<>("auction", COUNTS));
      best = getRuntimeContext().getState(new ValueStateDescriptor<>("best", Types.LONG));
      early = getRuntimeContext().getListState(new ListStateDescriptor<>("early", LONGS));
    }
    void bid(long price, long placed, Tuple3<Long, Long, Long> a) throws Exception {
      if (placed < a.f1 || placed > a.f2) return;
      Long before = best.value();
      if (before == null || price > before) best.update(price);
    }
    @Override public void processElement1(Auction a, Context context, Collector<Tuple2<Long, Long>> out) throws Exception {
      Tuple3<Long, Long, Long> kept = Tuple3.of(a.<Long>getField(field), a.f3, a.f4);
      auction.update(kept);
      for (Tuple2<Long, Long> b : early.get()) bid(b.f0, b.f1, kept);
      early.clear();
      context.timerService().registerEventTimeTimer(a.f4);
    }
    @Override public void processElement2(Tuple3<Long, Long, Long> b, Context context, Collector<Tuple2<Long, Long>> out)
        throws Exception {
      Tuple3<Long, Long, Long> a = auction.value();
      if (a != null) {
        bid(b.f1, b.f2, a);
      } else if (b.f2 > context.timerService().currentWatermark()) { // else it was never open, or is closed
        early.add(Tuple2.of(b.f1, b.f2));
        context.timerService().registerEventTimeTimer(b.f2);
      }
    }
    @Override public void onTimer(long time, OnTimerContext context, Collector<Tuple2<Long, Long>> out) throws Exception {
      Tuple3<Long, Long, Long> a = auction.value();
      if (a == null) {
        List<Tuple2<Long, Long>> left = new ArrayList<>(); // the others are of an auction that opens later
        for (Tuple2<Long, Long> b : early.get()) if (b.f1 > time) left.add(b);
        early.update(left);
      } else if (time >= a.f2) {
        if (best.value() != null) out.collect(Tuple2.of(a.f0, best.value()));
        auction.clear();
        best.clear();
      }
    }
  }
  DataStream<Tuple2<Long, Long>> winning(int field) {
    DataStream<Tuple3<Long, Long, Long>> bids = bids().map(b -> Tuple3.of(b.f0, b.f2, b.f3)).returns(COUNTS);
    return auctions().keyBy(a -> a.f0, Types.LONG).connect(bids.keyBy(b -> b.f0, Types.LONG))
        .process(new Winning(field), LONGS);
  }

  /** The average of all, or of the last so many, values of a key. */
  static class Average extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple2<Long, Double>> {
    final int last;
    transient ValueState<long[]> kept; // sum and count, or the last values
    Average(int last) { this.last = last; }
    @Override public void open(OpenContext context) {
      kept = getRuntimeContext().getState(new ValueStateDescriptor<>("kept", long[].class));
    }
    @Override public void processElement(Tuple2<Long, Long> row, Context context, Collector<Tuple2<Long, Double>> out)
        throws Exception {
      long[] before = kept.value(), after;
      double average;
      if (last == 0) {
        after = before == null ? new long[] {row.f1, 1} : new long[] {before[0] + row.f1, before[1] + 1};
        average = (double) after[0] / after[1];
      } else {
        int old = before == null ? 0 : Math.min(before.length, last - 1);
        after = new long[old + 1];
        if (old > 0) System.arraycopy(before, before.length - old, after, 0, old);
        after[old] = row.f1;
        long sum = 0;
        for (long value : after) sum += value;
        average = (double) sum / after.length;
      }
      kept.update(after);
      out.collect(Tuple2.of(row.f0, average));
    }
  }

  static final Duration TEN = Duration.ofSeconds(10), TWO = Duration.ofSeconds(2);

  DataStream<?> query(String name) {
    switch (name) {
      case "q0": return bids();
      case "q1": return bids().map(b -> Tuple5.of(b.f0, b.f1, b.f2 * 0.908, b.f3, b.f4))
          .returns(Types.TUPLE(Types.LONG, Types.LONG, Types.DOUBLE, Types.LONG, Types.STRING));
      case "q2": return bids().filter(b -> b.f0 % 123 == 0).map(b -> Tuple2.of(b.f0, b.f2)).returns(LONGS);
      case "q3": {
        DataStream<Person> people = people().filter(p -> p.f3.equals("OR") || p.f3.equals("ID") || p.f3.equals("CA"));
        return people.keyBy(p -> p.f0, Types.LONG)
            .connect(auctions().filter(a -> a.f2 == 10).keyBy(a -> a.f1, Types.LONG))
            .process(new LocalItems(people.getType()), Types.TUPLE(Types.STRING, Types.STRING, Types.STRING, Types.LONG));
      }
      case "q4": return winning(2).keyBy(w -> w.f0, Types.LONG).process(new Average(0), Types.TUPLE(Types.LONG, Types.DOUBLE));
      case "q5": return pairs(0).keyBy(b -> b.f0, Types.LONG).window(SlidingEventTimeWindows.of(TEN, TWO))
          .aggregate(new Count<>(), new WithWindow(), Types.LONG, Types.LONG, COUNTS)
          .keyBy(c -> c.f2, Types.LONG).window(TumblingEventTimeWindows.of(TWO))
          .aggregate(new Best<Tuple3<Long, Long, Long>>(1), list(COUNTS), list(COUNTS))
          .flatMap((ArrayList<Tuple3<Long, Long, Long>> best, Collector<Tuple3<Long, Long, Long>> out) -> best.forEach(out::collect))
          .returns(COUNTS);
      case "q6": return winning(1).keyBy(w -> w.f0, Types.LONG).process(new Average(10), Types.TUPLE(Types.LONG, Types.DOUBLE));
      case "q7": {
        DataStream<Bid> bids = bids();
        return bids.windowAll(TumblingEventTimeWindows.of(TEN))
            .aggregate(new Best<Bid>(2), list(bids.getType()), list(bids.getType()))
            .flatMap((ArrayList<Bid> best, Collector<Bid> out) -> best.forEach(out::collect)).returns(bids.getType());
      }
      case "q8": return people().coGroup(auctions()).where(p -> p.f0, Types.LONG).equalTo(a -> a.f1, Types.LONG)
          .window(TumblingEventTimeWindows.of(TEN))
          .apply((Iterable<Person> people, Iterable<Auction> auctions, Collector<Tuple2<Long, String>> out) -> {
            if (auctions.iterator().hasNext()) for (Person p : people) out.collect(Tuple2.of(p.f0, p.f1));
          }, Types.TUPLE(Types.LONG, Types.STRING));
      case "q11": return pairs(1).keyBy(b -> b.f0, Types.LONG).window(EventTimeSessionWindows.withGap(TEN))
          .aggregate(new Count<>(), new WithWindow(), Types.LONG, Types.LONG, COUNTS);
      case "q12": return pairs(1).keyBy(b -> b.f0, Types.LONG).window(TumblingProcessingTimeWindows.of(TEN))
          .aggregate(new Count<>(), new WithWindow(), Types.LONG, Types.LONG, COUNTS);
      default: throw new IllegalArgumentException(name);
    }
  }

  @SuppressWarnings({"unchecked", "rawtypes"})
  static <T> TypeInformation<ArrayList<T>> list(TypeInformation<T> of) {
    return (TypeInformation<ArrayList<T>>) (TypeInformation) new org.apache.flink.api.java.typeutils.ListTypeInfo<>(of);
  }

  /** Counts what passes. */
  static class Counting<T> extends RichMapFunction<T, T> {
    final LongCounter rows = new LongCounter();
    @Override public void open(OpenContext context) { getRuntimeContext().addAccumulator("rows", rows); }
    @Override public T map(T row) { rows.add(1); return row; }
  }

  @SuppressWarnings("unchecked")
  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = in.readLine()) != null;) {
      String[] words = line.split(" ");
      Configuration settings = new Configuration();
      settings.setString("execution.checkpointing.interval", "1 s");
      settings.setString("execution.checkpointing.dir", "file://" + arguments[0]);
      settings.setString("pipeline.object-reuse", "true");
      settings.setString("restart-strategy.type", "none"); // what fails shall be seen
      StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(1, settings);
      NexmarkJob job =
          new NexmarkJob(env, Long.parseLong(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3]));
      DataStream<Object> results = (DataStream<Object>) job.query(words[0]);
      results.map(new Counting<>()).returns(results.getType()).sinkTo(new DiscardingSink<>());
      JobExecutionResult result = env.execute(words[0]);
      Long rows = result.getAccumulatorResult("rows");
      System.out.printf(Locale.ROOT, "%.3f %d%n", result.getNetRuntime() / 1e3, rows == null ? 0 : rows);
      System.out.flush();
    }
  }
}
